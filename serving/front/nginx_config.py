"""Writes nginx's configuration: conf/nginx.conf filled in from the settings."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import resource
import shutil
from collections.abc import Sequence
from pathlib import Path

from offpath.handler.errors import WrongOption
from offpath.handler.process.host_limits import count_cores
from offpath.serving.front.behind import Behind
from offpath.serving.front.door_settings import DoorPlace, DoorSettings
from offpath.serving.front.nginx import NginxBinary
from offpath.serving.front.splits import Split
from offpath.serving.granian.slots import name_socket
from offpath.serving.shell.torchserve_http import MODEL_GONE
from offpath.serving.torchserve.server_settings import CONF_DIR

TEMPLATE = CONF_DIR / "nginx.conf"
OWN_TEMPLATE = CONF_DIR / "nginx-torchserve.conf"
HOSTS_TEMPLATE = CONF_DIR / "nginx-hosts.conf"
METRICS_TEMPLATE = CONF_DIR / "nginx-metrics.conf"
DEMO_TEMPLATE = CONF_DIR / "nginx-demo.conf"
CONF = "nginx.conf"
TOKENS_MAP = "tokens.map"
MODELS = "models.json"
OPENAPI = "openapi.json"
DEMO = "demo"
ERROR_LOG = "front.log"
ACCESS_LOG = "front-access.log"
# A line for each answer, and the metrics that are made of them (answers.py).
ANSWERS = "answers.log"
DOOR_METRICS = "door.prom"
PLACEHOLDER = re.compile(r"@\{(\w+)\}")
# Paths that need no quoting in the configuration.
PLAIN_PATH = re.compile(r"[\w/.,+:@=-]+")

MAX_WORKERS = 4
# Per worker, 0.4 kB each. A request takes two, and each client with a kept connection one. 8,400
# clients that send half a header filled 4,096 in each of two workers.
CONNECTIONS = 16384
# A header fits into three packets; five seconds allow for two of them to be lost.
HEADER_TIMEOUT_S = 5
# Sizes of bodies in nginx.conf's map, and the bytes of the largest. Each size may take a quarter of
# the memory. The last quarter is for smaller bodies, which only the queue limits.
SIZES = {"small": 500_000, "medium": 4_000_000, "large": None}
# status -> type, message. The handler's own errors have the same shape (handler/response.py).
ERRORS = {
    400: ("BadRequest", "the request cannot be read"),
    401: ("Unauthorized", "a bearer token is needed"),
    403: ("Forbidden", "explanations are closed on this server"),
    404: ("NotFound", "not found; the paths are /predictions/MODEL and /ping"),
    405: (
        "MethodNotAllowed",
        "send an image with POST or PUT; the other paths have GET",
    ),
    413: (
        "PayloadTooLarge",
        "the body is too large; at most {max_body_bytes} bytes are accepted",
    ),
    429: (
        "TooManyRequests",
        "too many requests or too large bodies from this client; send fewer at a time",
    ),
    502: ("BadGateway", "the server ended before it answered; send the request again"),
    503: ("ServiceUnavailable", "too many requests are waiting; try again later"),
    504: ("GatewayTimeout", "the server took too long to answer"),
}
NO_ROOM = "if ($offpath_asked_all) { %s }\n    "
# nginx also says 502 where it asked no server: every queue is full or every host left alone (then
# it names the upstream instead of an address), or nothing listens. Both are 503 for the client.
BUSY = "if ($upstream_addr ~ (torchserve|granian_[0-9]+)$) { %s }\n    "
NOT_STARTED = "if ($upstream_connect_time ~ ^[-,\\ ]+$) { %s }\n    "
ALL_BUSY = "all hosts are busy or do not answer; try again later"
ALL_UNWELL = "no host is ready; try again later"
NO_MEMORY = "no memory is left for the body; try again later"
UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
# With two hosts dead a third one answers, and a request that kills hosts kills no more than these.
MOST_TRIES = 3
# nginx puts requests on a connection to TorchServe for this many seconds, and then keeps the
# connection for as many seconds more.
KEEPALIVE_S = 2
SERVER_METRICS = '<!--# include virtual="/server" stub="none" -->'
UPSTREAM = """\
upstream @{name} {
    # Shared by nginx's workers, so limits and counts cover the requests of all of them.
    zone @{name} 64k;
    @{servers}
    # A new connection costs Java 0.2 ms.
    keepalive 128;
    keepalive_requests 1000000;
}"""
TIMES = """\
# So that all connections leave an old server soon after its link has changed.
keepalive_time {keepalive_s}s;
keepalive_timeout {keepalive_s}s;"""
OWN = """\
# A link that a reload points at another TorchServe. No more requests than its queue holds: the door
# refuses the rest, because TorchServe's own refusal has a misleading text.
server unix:{run}/inference.sock max_conns={queue};
{times}"""
# A link for each worker, and no more requests for it than it takes.
WORKERS = """\
# The worker with the fewest requests. The path of one that is being replaced leads to another one.
least_conn;
{servers}
{times}"""
# The copies that one shadow may hold at a time, and with them their bodies: 64 MB of medium ones.
COPIES = 16
# A copy may delay the next request on its client's connection by this time.
COPY_TIMEOUT_S = 1
# No copies for ten seconds after one without an answer. nginx needs a second server for that.
COPY_SERVERS = """\
least_conn;
{servers}
server unix:{run}/none down;
{times}"""
MIRROR = """\
# Chooses the copy's path while the request still has its own.
set $offpath_copied $offpath_copy;
mirror /_offpath/shadow;"""
CANARY = (
    'split_clients "{model} $offpath_canary_key" $offpath_canary_{n} '
    '{{ {share}% {model}/{version}; * ""; }}'
)
SHADOW = (
    "split_clients $request_id $offpath_copy_{n} "
    '{{ {share}% /predictions/{model}/{version}; * ""; }}'
)
HOSTS = """\
# Ask the host with the fewest requests. A host that has just started, whose Java code is not yet
# compiled, then gets only as many as it answers.
least_conn;
# A failed request goes to another host. `backup`: the host's /ping has failed, so it is asked only
# when no other host can be. nginx leaves no host alone after failures (`max_fails=0`): a model that
# is dead on every host would then cost the other models their requests.
{servers}
# Shorter than the 75 s for which a host's own door keeps connections.
keepalive_timeout 60s;"""
BY_NAME = """\
# The body is a file that is deleted after the request; TorchServe gets its name. If the client
# leaves, the file is gone at once, and the worker has nothing to decode. That must hold for small
# bodies too: an image of 50 million pixels can have 10 kB.
client_body_in_file_only clean;
proxy_pass_request_body off;
proxy_set_header Content-Length "";
proxy_set_header X-Offpath-Body $request_body_file;"""
AS_BYTES = 'proxy_set_header X-Offpath-Body "";'
# TorchServe predicts a body that it has, whether or not the client is still there.
COUNTED = """\
# Counts a request of a client that has left until TorchServe has answered it.
proxy_ignore_client_abort on;"""


def write_config(
    place: DoorPlace,
    settings: DoorSettings,
    behind: Behind,
    binary: NginxBinary,
    tokens: Sequence[str] = (),
) -> Path:
    """Writes nginx.conf and the files it includes, mode 0600 because they hold secrets.

    Returns:
        path of nginx.conf.
    """
    path = place.run / CONF
    values = _values(place, settings, behind, binary)
    text = fill(TEMPLATE.read_text(encoding="utf-8"), values)
    new_tokens = _write_new(place.run / TOKENS_MAP, _format_tokens(tokens))
    _write_new(path, text).replace(path)
    new_tokens.replace(place.run / TOKENS_MAP)
    # Copies, because nginx cannot use every path that a package may be installed at.
    _copy_once(CONF_DIR / OPENAPI, place.run)
    for page in settings.pages:
        _copy_once(page, place.run / DEMO)
    return path


def write_models(run: Path, names: Sequence[str]) -> Path:
    """Writes the next answer of /models, in the form of TorchServe's management API.

    Returns:
        the file, which is in force when it replaces `MODELS`.
    """
    models = [{"modelName": name} for name in names]
    return _write_new(run / MODELS, json.dumps({"models": models}))


def _format_tokens(tokens: Sequence[str]) -> str:
    """Returns the lines of nginx's map from the Authorization header to 1, one per token."""
    # Plain strings of a map ignore case; a pattern with `~` does not.
    return "".join(f'"~^[Bb]earer {re.escape(token)}$" 1;\n' for token in tokens)


def fill(template: str, values: dict[str, str]) -> str:
    """Replaces each `@{name}` by its value; the lines of a value are indented like its first.

    Raises:
        KeyError: a name has no value.
    """
    lines = []
    for line in template.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        new = PLACEHOLDER.sub(lambda m: values[m[1]].replace("\n", "\n" + indent), line)
        if new.strip() or not line.strip():
            lines.append(new)
    return "\n".join(lines) + "\n"


def _upstream_values(behind: Behind, run: Path, binary: NginxBinary) -> dict[str, str]:
    """Returns the values that differ between a server on this host and several hosts."""
    times = TIMES.format(keepalive_s=KEEPALIVE_S)
    one = {
        "id_of_host": "",
        "routes": "",
        "unknown_model": "",
        "upstream": "torchserve",
    }
    if behind.routes:
        return {**one, **_route_values(behind, run, times)}
    if not behind.hosts:
        servers = OWN.format(run=run, queue=behind.queue, times=times)
        return {**one, "upstreams": _format_upstream("torchserve", servers)}
    # nginx needs one server that is no backup: if all are unwell, none is marked.
    spare = behind.unwell if behind.unwell < set(behind.hosts) else frozenset()
    # An nginx that is not reloaded for /ping has only the failures to go by.
    most = 0 if binary.has_keepalive_min_timeout else 3
    lines = [
        f"server {host} max_fails={most} fail_timeout=2s max_conns={behind.queue}"
        f"{' backup' if host in spare else ''};"
        for host in behind.hosts
    ]
    servers = HOSTS.format(servers="\n".join(lines))
    return {
        **one,
        "upstreams": _format_upstream("torchserve", servers),
        "id_of_host": '"~." $upstream_http_x_request_id;',
        "tries": str(min(MOST_TRIES, max(2, len(behind.hosts)))),
    }


def _split_values(settings: DoorSettings, behind: Behind, run: Path) -> dict[str, str]:
    """Returns the values of canaries and shadows."""
    canaries = list(enumerate(split for split in settings.canary if not split.suspended))
    shadows = list(enumerate(settings.shadow))
    key = "$offpath_client"
    if settings.canary_by is not None:
        key = f"$http_{settings.canary_by.lower().replace('-', '_')}"
    lines = {
        "splits": [
            *(CANARY.format(n=n, **vars(split)) for n, split in canaries),
            *(SHADOW.format(n=n, **vars(split)) for n, split in shadows),
            *(_shadow_upstream(n, split, behind, run) for n, split in shadows),
        ],
        "canary_paths": [
            f'"~^/[a-z]+/{split.path}$" $offpath_canary_{n};' for n, split in canaries
        ],
        "copy_paths": [
            f'"~^(small|medium)? /predictions/{split.path}$" $offpath_copy_{n};'
            for n, split in shadows
        ],
        "shadow_paths": [f'"~^/predictions/{split.path}/" shadow_{n};' for n, split in shadows],
        "canary_by": [key],
        "took": ["$offpath_took" if shadows else "$request_time"],
        "mirror": [MIRROR] if shadows else [],
    }
    return {name: "\n".join(value) for name, value in lines.items()}


def _shadow_upstream(number: int, split: Split, behind: Behind, run: Path) -> str:
    sockets = [
        behind.name_link(name_socket(slot))
        for model in behind.routes
        if (model.name, model.version) == (split.model, split.version)
        for slot in model.slots
    ] or ["inference.sock"]
    most = -(-COPIES // len(sockets))
    servers = "\n".join(
        f"server unix:{run}/{socket} max_conns={most} fail_timeout=10s;" for socket in sockets
    )
    times = TIMES.format(keepalive_s=KEEPALIVE_S)
    servers = COPY_SERVERS.format(run=run, servers=servers, times=times)
    return _format_upstream(f"shadow_{number}", servers)


def _route_values(behind: Behind, run: Path, times: str) -> dict[str, str]:
    """Returns the values for Granian: an upstream for each model, which the path chooses."""
    upstreams, paths = [], []
    for model in behind.routes:
        name = f"granian_{model.first_slot}"
        most = model.share_queue(behind.queue)
        servers = "\n".join(
            f"server unix:{run}/{socket} max_conns={most} max_fails=0;"
            for socket in map(behind.name_link, map(name_socket, model.slots))
        )
        servers = WORKERS.format(servers=servers, times=times)
        upstreams.append(_format_upstream(name, servers))
        version = f"(/{re.escape(model.version)}){'?' if model.is_default else ''}"
        paths.append(f'"~^/[a-z]+/{re.escape(model.name)}{version}$" {name};')
    listed = "\n    ".join(paths)
    return {
        "upstreams": "\n".join(upstreams),
        "upstream": "$offpath_model",
        "routes": f"map $uri$offpath_canary $offpath_model {{\n    {listed}\n}}",
        "unknown_model": 'if ($offpath_model = "") {\n    return 404;\n}',
    }


def _format_upstream(name: str, servers: str) -> str:
    return fill(UPSTREAM, {"name": name, "servers": servers}).rstrip()


def _values(
    place: DoorPlace,
    settings: DoorSettings,
    behind: Behind,
    binary: NginxBinary,
) -> dict[str, str]:
    files = min(2 * CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    access_log = f"access_log {_quote(place.log / ACCESS_LOG)};"
    values = {
        "run": _check_plain(place.run),
        "bodies": _check_plain(place.bodies),
        "user": _user_line(),
        "workers": str(min(MAX_WORKERS, count_cores())),
        "files": str(files),
        "connections": str(min(CONNECTIONS, files * 2 // 3)),
        "drain_s": str(settings.drain_s),
        "error_log": _quote(place.log / ERROR_LOG),
        "access_log": access_log if settings.verbose else "",
        "buffer_bytes": str(settings.buffer_bytes),
        "max_body_bytes": str(behind.max_body_bytes),
        "client_timeout_s": str(settings.client_timeout_s),
        "header_timeout_s": str(min(HEADER_TIMEOUT_S, settings.client_timeout_s)),
        "keepalive_min_timeout": _keepalive_line(binary),
        "body": _body_lines(behind),
        "client_ids": _asked_id_lines(settings, behind),
        "front_key": settings.front_keys[0] if settings.front_keys else "",
        "type_to_torchserve": (
            "application/octet-stream" if behind.hand_over else "$http_content_type"
        ),
        "may_without_token": "1" if settings.tokens is None else "0",
        "rate_zone": _rate_zone_line(settings.client_rate),
        "listen": _listen(settings, binary),
        "tls": _tls_lines(settings, binary),
        "metrics_listen": f"{_bracket(settings.metrics_host)}:{settings.metrics_port}",
        "explanations": "|explanations" if settings.explanations else "",
        "invocations": _invocations_lines(behind.only_model),
        "size_zones": _size_zone_lines(),
        "limits": _limit_lines(place, settings, behind),
        "errors": _error_lines(behind),
        "key": place.key,
        "answer_timeout_s": str(behind.answer_timeout_s),
        **_upstream_values(behind, place.run, binary),
        **_split_values(settings, behind, place.run),
    }
    passing = HOSTS_TEMPLATE if behind.hosts else OWN_TEMPLATE
    values["to_torchserve"] = _fill_part(passing, values)
    shadow = {"upstream": "$offpath_shadow", "answer_timeout_s": str(COPY_TIMEOUT_S)}
    values["to_shadow"] = _fill_part(OWN_TEMPLATE, {**values, **shadow})
    alias = f"alias {values['run']}/{MODELS};"
    values["models"] = values["to_torchserve"] if behind.hosts else alias
    values["server_metrics"] = "" if behind.hosts else SERVER_METRICS
    values["metrics"] = _fill_part(METRICS_TEMPLATE, values)
    values["demo"] = _fill_part(DEMO_TEMPLATE, values) if settings.pages else ""
    return values


def _fill_part(template: Path, values: dict[str, str]) -> str:
    return fill(template.read_text(encoding="utf-8"), values).rstrip()


def _user_line() -> str:
    """Keeps root's nginx from running its workers as another user, who could not own the bodies."""
    if os.getuid() != 0:
        return ""
    user = pwd.getpwuid(0).pw_name
    return f"user {user} {grp.getgrgid(os.getgid()).gr_name};"


def _keepalive_line(binary: NginxBinary) -> str:
    if not binary.has_keepalive_min_timeout:
        return ""
    return (
        "# Keeps a connection for a request that is just arriving when nginx ends or reloads.\n"
        "keepalive_min_timeout 1s;"
    )


def _body_lines(behind: Behind) -> str:
    """Returns the lines that pass a body on by name, or as bytes to handlers that take no names."""
    if behind.hand_over:
        return BY_NAME
    # A host's own door notices that the client has left when this door leaves.
    return AS_BYTES if behind.hosts else f"{AS_BYTES}\n{COUNTED}"


def _asked_id_lines(settings: DoorSettings, behind: Behind) -> str:
    """Returns the map's lines from "KEY ID" to a request's id that begins with the asked one.

    The digits behind a client's id keep two requests with one id apart, and the digits behind the ~
    two attempts at one request. `logs read --once` shows one of those, so with a ~ a client could
    hide another's record: only a door that knows a key may send it.
    """
    lines = []
    if settings.client_ids:
        lines.append(f'"~ (?<client_id>{UUID})$" $client_id.$offpath_short_id;')
    if settings.front_keys and not behind.hosts:
        keys = "|".join(map(re.escape, settings.front_keys))
        asked = f"(?<asked_id>{UUID}(\\.[0-9a-f]{{12}})?~)"
        lines.append(f'"~^({keys}) {asked}$" $asked_id$offpath_short_id;')
    return "\n".join(lines)


def _rate_zone_line(rate: int) -> str:
    if not rate:
        return ""
    return f"limit_req_zone $offpath_client zone=rates:4m rate={rate}r/s;"


def _size_zone_lines() -> str:
    # nginx reads a key `of_all` only if the client's own limits do not refuse the request. The
    # pattern notes that: what is refused then is refused for want of memory, not for this client.
    return "\n".join(
        f'map $offpath_size $offpath_{size}_of_one {{ default ""; {size} $offpath_client; }}\n'
        f"map $offpath_size $offpath_{size}_of_all "
        f'{{ default ""; "~^(?<offpath_asked_all>{size})$" all; }}\n'
        f"limit_conn_zone $offpath_{size}_of_one zone={size}_of_one:1m;\n"
        f"limit_conn_zone $offpath_{size}_of_all zone={size}_of_all:32k;"
        for size in SIZES
    )


def _invocations_lines(model: str | None) -> str:
    if model is None:
        return ""
    return (
        "# SageMaker's path; the location above checks the rest of the request.\n"
        f"location = /invocations {{\n    rewrite ^ /predictions/{model} last;\n}}"
    )


def count_bodies(
    room_bytes: int, settings: DoorSettings, behind: Behind
) -> dict[str, tuple[int, int]]:
    """Returns for each size how many bodies one client and all clients may have at a time.

    One client gets as large a share of the memory as `client_connections` is of the queue. Requests
    that wait for their copy come on top, except with large bodies, which are not copied.
    """
    copies = COPIES * len(settings.shadow)
    queue = behind.queue * max(1, len(behind.hosts))
    share = min(1.0, settings.client_connections / queue)
    counts = {}
    for size, largest in SIZES.items():
        bytes_each = min(largest or behind.max_body_bytes, behind.max_body_bytes)
        in_all = max(1, room_bytes // (len(SIZES) + 1) // bytes_each)
        extra = copies if largest is not None else 0
        counts[size] = max(1, int(in_all * share)) + extra, in_all + extra
    return counts


def _limit_lines(place: DoorPlace, settings: DoorSettings, behind: Behind) -> str:
    counts = count_bodies(place.room_bytes, settings, behind)
    connections = settings.client_connections + COPIES * len(settings.shadow)
    lines = [
        f"limit_conn clients {connections};",
        *(f"limit_conn {size}_of_one {one};" for size, (one, _) in counts.items()),
        *(f"limit_conn {size}_of_all {all_};" for size, (_, all_) in counts.items()),
    ]
    if settings.client_rate:
        # The requests of one second may come at once; more are refused, not delayed.
        lines.append(f"limit_req zone=rates burst={settings.client_rate} nodelay;")
    return "\n".join(lines)


def _listen(settings: DoorSettings, binary: NginxBinary) -> str:
    words = [f"{_bracket(settings.host)}:{settings.port}", "backlog=1024"]
    if settings.tls_cert is not None:
        words.append("ssl" if binary.has_http2_directive else "ssl http2")
    return " ".join(words)


def _tls_lines(settings: DoorSettings, binary: NginxBinary) -> str:
    if settings.tls_cert is None or settings.tls_key is None:
        return ""
    lines = [
        f"ssl_certificate {_quote(settings.tls_cert.resolve())};",
        f"ssl_certificate_key {_quote(settings.tls_key.resolve())};",
        "ssl_protocols TLSv1.2 TLSv1.3;",
        "# Saves a returning client the handshake's signature.",
        "ssl_session_cache shared:tls:2m;",
        "ssl_session_tickets off;",
    ]
    if binary.has_http2_directive:
        lines.append("http2 on;")
    return "\n".join(lines)


def _error_lines(behind: Behind) -> str:
    """Returns a location for each error; 500 is nginx's answer when the tmpfs is full."""
    busy, starting = ERRORS[503][1], "the server is starting"
    if behind.hosts:
        busy = starting = ALL_BUSY
        if behind.unwell >= set(behind.hosts):
            busy = starting = ALL_UNWELL
    lines = [_error_location(500, _answer(503, ERRORS[503][0], NO_MEMORY))]
    for status, (kind, message) in ERRORS.items():
        text = message.format(max_body_bytes=behind.max_body_bytes)
        answer = _answer(status, kind, text)
        if status == 429:
            answer = NO_ROOM % _answer(503, ERRORS[503][0], NO_MEMORY) + answer
        if status == 502:
            if behind.routes:
                # Only a worker has ended, and others can answer.
                answer = _answer(MODEL_GONE.status, MODEL_GONE.type, MODEL_GONE.message)
            first = BUSY % _answer(503, ERRORS[503][0], busy)
            first += NOT_STARTED % _answer(503, ERRORS[503][0], starting)
            answer = first + answer
        lines.append(_error_location(status, answer))
    return "\n".join(lines)


def _error_location(status: int, answer: str) -> str:
    return f"location = /_offpath/{status} {{\n    internal;\n    {answer}\n}}"


def _answer(status: int, kind: str, message: str) -> str:
    """Returns the directives that answer an error and name its type for the metrics."""
    body = json.dumps({"code": status, "type": kind, "message": message})
    return f"set $offpath_error {kind}; return {status} '{body}';"


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check_plain(path: Path) -> str:
    if PLAIN_PATH.fullmatch(str(path)) is None:
        raise WrongOption(
            f"nginx cannot use the path {str(path)!r}; choose one without quotes, $, ; and braces"
        )
    return str(path)


def _quote(path: Path) -> str:
    if any(c in '"\\$;{}' or not c.isprintable() for c in str(path)):
        raise WrongOption(
            f"nginx cannot use the path {str(path)!r}; choose one without quotes, $, ; and braces"
        )
    return f'"{path}"'


def _copy_once(page: Path, folder: Path) -> None:
    """Copies a page that never changes; a copy to a full disk would only empty the file."""
    folder.mkdir(exist_ok=True)
    if not (folder / page.name).exists():
        shutil.copy(page, folder)


def _write_new(path: Path, text: str) -> Path:
    """Writes a file to replace another, which nginx may read at any time, at once."""
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return new
