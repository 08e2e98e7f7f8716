"""nginx's configuration: conf/nginx.conf filled in from the settings."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.errors import WrongOption
from offpath.handler.process.host_limits import count_cores
from offpath.serving.front.binary import NginxBinary
from offpath.serving.front.door_settings import FrontSettings
from offpath.serving.front.upstream import (
    HOSTS_TEMPLATE,
    OWN_TEMPLATE,
    Behind,
    upstream_values,
)
from offpath.serving.torchserve.server_settings import CONF_DIR

TEMPLATE = CONF_DIR / "nginx.conf"
METRICS_TEMPLATE = CONF_DIR / "nginx-metrics.conf"
CONF = "nginx.conf"
TOKENS_MAP = "tokens.map"
ERROR_LOG = "front.log"
ACCESS_LOG = "front-access.log"
PLACEHOLDER = re.compile(r"@\{(\w+)\}")
# What may stand in a configuration as it is.
PLAIN_PATH = re.compile(r"[\w/.,+:@=-]+")

MAX_WORKERS = 4
# Of one worker; a request has two, and each kept client one.
CONNECTIONS = 4096
# status -> type, message; the handler's own errors have this shape (handler/response.py).
ERRORS = {
    400: ("BadRequest", "the request cannot be read"),
    401: ("Unauthorized", "a bearer token is needed"),
    403: ("Forbidden", "explanations are closed here"),
    404: ("NotFound", "there is /predictions/MODEL and /ping"),
    405: ("MethodNotAllowed", "pictures are sent by POST or PUT"),
    408: ("RequestTimeout", "the request came too slowly"),
    413: ("PayloadTooLarge", "{max_body_bytes} bytes are accepted at most"),
    429: ("TooManyRequests", "too many requests of one client; send fewer at a time"),
    502: ("BadGateway", "the server ended while it answered; send the request again"),
    503: ("ServiceUnavailable", "too many requests are waiting; come again"),
    504: ("GatewayTimeout", "the server took too long"),
}
# An upstream's status is 502 where it was not asked at all: its queue is full (then nginx names
# the upstream, not its address), or nobody listens.
BUSY = "if ($upstream_addr ~ torchserve$) { return 503 '%s'; }\n    "
NOT_STARTED = "if ($upstream_connect_time ~ ^[-,\\ ]+$) { return 503 '%s'; }\n    "
UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"


@dataclass(frozen=True)
class FrontPlace:
    """Where one front door lives.

    Attributes:
        run: folder of its configuration and links, mode 0700.
        bodies: folder of the bodies, see bodies.py.
        log: folder of its logs.
        key: what the handler knows it by.
    """

    run: Path
    bodies: Path
    log: Path
    key: str


def write_config(
    place: FrontPlace,
    settings: FrontSettings,
    behind: Behind,
    binary: NginxBinary,
    tokens_map: str,
) -> Path:
    """Writes nginx.conf and what it includes; readable to us alone, as it holds the key."""
    path = place.run / CONF
    values = _values(place, settings, behind, binary)
    _write_private(path, fill(TEMPLATE.read_text(encoding="utf-8"), values))
    _write_private(place.run / TOKENS_MAP, tokens_map)
    return path


def fill(template: str, values: dict[str, str]) -> str:
    """Puts values into their places; a value's further lines are indented as its first.

    Raises:
        KeyError: a place without a value.
    """
    lines = []
    for line in template.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        new = PLACEHOLDER.sub(lambda m: values[m[1]].replace("\n", "\n" + indent), line)
        if new.strip() or not line.strip():
            lines.append(new)
    return "\n".join(lines) + "\n"


def below(number: int) -> str:
    """A pattern for the decimal numbers below `number`, which is at least 10."""
    digits = str(number)
    options = [f"[0-9]{{1,{len(digits) - 1}}}"]
    for place, digit in enumerate(digits):
        lowest = 1 if place == 0 else 0
        if int(digit) > lowest:
            rest = len(digits) - place - 1
            options.append(
                f"{digits[:place]}[{lowest}-{int(digit) - 1}][0-9]{{{rest}}}"
            )
    return f"^({'|'.join(options)})$"


def _values(
    place: FrontPlace,
    settings: FrontSettings,
    behind: Behind,
    binary: NginxBinary,
) -> dict[str, str]:
    files = min(4 * CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    named = "/named" if behind.hand_over else "/through"
    access_log = _quote(place.log / ACCESS_LOG) if settings.verbose else "off"
    values = {
        "run": _check_plain(place.run),
        "bodies": _check_plain(place.bodies),
        "user": _user_line(),
        "workers": str(min(MAX_WORKERS, count_cores())),
        "files": str(files),
        "connections": str(min(CONNECTIONS, files // 3)),
        "drain_s": str(settings.drain_s),
        "error_log": _quote(place.log / ERROR_LOG),
        "log_level": "info" if settings.verbose else "crit",
        "access_log": access_log,
        "buffer_bytes": str(settings.buffer_bytes),
        "max_body_bytes": str(behind.max_body_bytes),
        "client_timeout_s": str(settings.client_timeout_s),
        "keepalive_min_timeout": _keepalive_line(binary),
        "road_of_large": named,
        "small_length": below(settings.by_name_from_bytes),
        "client_ids": _client_ids_line(settings.client_ids),
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
        "limits": _limit_lines(settings),
        "errors": _error_lines(behind.max_body_bytes),
        "key": place.key,
        "answer_timeout_s": str(behind.answer_timeout_s),
        **upstream_values(behind, place.run),
    }
    passing = HOSTS_TEMPLATE if behind.hosts else OWN_TEMPLATE
    values["to_torchserve"] = _fill_part(passing, values)
    values["metrics"] = "" if behind.hosts else _fill_part(METRICS_TEMPLATE, values)
    return values


def _fill_part(template: Path, values: dict[str, str]) -> str:
    return fill(template.read_text(encoding="utf-8"), values).rstrip()


def _user_line() -> str:
    """Root's nginx would hand its workers, and so the bodies, to somebody else."""
    if os.getuid() != 0:
        return ""
    user = pwd.getpwuid(0).pw_name
    return f"user {user} {grp.getgrgid(os.getgid()).gr_name};"


def _keepalive_line(binary: NginxBinary) -> str:
    if not binary.has_keepalive_min_timeout:
        return ""
    return (
        "# A request on its way when we end or reload: its connection stays that long.\n"
        "keepalive_min_timeout 1s;"
    )


def _client_ids_line(client_ids: bool) -> str:
    """The client's id in front; what follows keeps two requests with one id apart, and what follows
    the ~ of `offpath front` two attempts at one request."""
    if not client_ids:
        return ""
    return (
        f'"~^(?<client_id>{UUID})$" $client_id.$offpath_short_id;\n'
        f'"~^(?<asked_id>{UUID}(\\.[0-9a-f]{{12}})?~)$" $asked_id$offpath_short_id;'
    )


def _rate_zone_line(rate: int) -> str:
    if not rate:
        return ""
    return f"limit_req_zone $binary_remote_addr zone=rates:1m rate={rate}r/s;"


def _invocations_lines(model: str | None) -> str:
    if model is None:
        return ""
    return (
        "# SageMaker's path; the location above looks at the rest of the request.\n"
        f"location = /invocations {{\n    rewrite ^ /predictions/{model} last;\n}}"
    )


def _limit_lines(settings: FrontSettings) -> str:
    lines = [f"limit_conn clients {settings.client_connections};"]
    if settings.client_rate:
        # A second's worth at once; what is beyond is refused, not delayed.
        lines.append(f"limit_req zone=rates burst={settings.client_rate} nodelay;")
    return "\n".join(lines)


def _listen(settings: FrontSettings, binary: NginxBinary) -> str:
    words = [f"{_bracket(settings.host)}:{settings.port}", "backlog=1024"]
    if settings.tls_cert is not None:
        words.append("ssl" if binary.has_http2_directive else "ssl http2")
    return " ".join(words)


def _tls_lines(settings: FrontSettings, binary: NginxBinary) -> str:
    if settings.tls_cert is None or settings.tls_key is None:
        return ""
    lines = [
        f"ssl_certificate {_quote(settings.tls_cert.resolve())};",
        f"ssl_certificate_key {_quote(settings.tls_key.resolve())};",
        "ssl_protocols TLSv1.2 TLSv1.3;",
        "# A client that comes back saves the handshake's signature.",
        "ssl_session_cache shared:tls:2m;",
        "ssl_session_tickets off;",
    ]
    if binary.has_http2_directive:
        lines.append("http2 on;")
    return "\n".join(lines)


def _error_lines(max_body_bytes: int) -> str:
    lines = []
    for status, (kind, message) in ERRORS.items():
        body = _error_body(status, kind, message.format(max_body_bytes=max_body_bytes))
        first = ""
        if status == 502:
            first = BUSY % _error_body(503, *ERRORS[503])
            first += NOT_STARTED % _error_body(503, ERRORS[503][0], "the server starts")
        lines.append(
            f"location = /_offpath/{status} {{\n    internal;\n"
            f"    {first}return {status} '{body}';\n}}"
        )
    return "\n".join(lines)


def _error_body(status: int, kind: str, message: str) -> str:
    return json.dumps({"code": status, "type": kind, "message": message})


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check_plain(path: Path) -> str:
    if PLAIN_PATH.fullmatch(str(path)) is None:
        raise WrongOption(f"nginx cannot have {str(path)!r} in its configuration")
    return str(path)


def _quote(path: Path) -> str:
    if any(c in '"\\$;{}' or not c.isprintable() for c in str(path)):
        raise WrongOption(f"nginx cannot have {str(path)!r} in its configuration")
    return f'"{path}"'


def _write_private(path: Path, text: str) -> None:
    """Whole or not at all: nginx may be told to read it at any time."""
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)
