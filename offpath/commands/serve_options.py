"""Options of `offpath serve`, and the checks between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from offpath.commands.shared_options import MODEL_STORE, Command, json_option, server_option
from offpath.errors import MissingPackage, WrongOption
from offpath.serving.front.bodies import MIN_BODIES, free_bytes, is_tmpfs
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.nginx import find_nginx
from offpath.serving.front.splits import parse_split
from offpath.serving.process import ports

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
PORT = click.IntRange(0, 65535)
DEFAULTS = DoorSettings()
# The default number of the largest bodies (max_request_size of config.properties).
MIN_FRONT_BYTES = MIN_BODIES * (32 << 20)
DEFAULT_LOG_DIR = Path(".offpath/logs")
DEFAULT_STORE = MODEL_STORE
# Name of a limit -> its default, and what it limits. The names are attributes of DoorSettings.
LIMITS = {
    "queue": (DEFAULTS.queue, "requests that may wait in the server (503)"),
    "client-connections": (
        DEFAULTS.client_connections,
        "requests that one client address has in flight (429)",
    ),
    "client-rate": (
        DEFAULTS.client_rate,
        "requests per second of one client address, 0 for any number (429)",
    ),
    "client-timeout-s": (
        DEFAULTS.client_timeout_s,
        "seconds without a byte of a request that has begun",
    ),
    "front-bodies": (
        DEFAULTS.front_bodies,
        "bodies of the largest size for which --front-memory must have room (503 later)",
    ),
}


def read_limit(text: str) -> tuple[str, int]:
    """Reads `client-rate=100` as the attribute `client_rate` and 100.

    Raises:
        BadParameter: it is not a limit and a whole number; only the rate may be 0.
    """
    name, _, number = text.partition("=")
    least = 0 if name == "client-rate" else 1
    if name not in LIMITS:
        raise click.BadParameter(f"{text!r}: expected NAME=NUMBER; names: {', '.join(LIMITS)}")
    if not (number.isascii() and number.isdigit() and int(number) >= least):
        raise click.BadParameter(f"{text!r}: expected a whole number from {least}")
    return name.replace("-", "_"), int(number)


def split_option(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(
        f"--{name}",
        multiple=True,
        metavar="MODEL=VERSION:SHARE%",
        callback=lambda _, __, texts: tuple(map(parse_split, texts)),
        help=f"{text} Can be repeated.",
    )


# In the order of `--help`.
SERVE_OPTIONS: list[Callable[[Any], Any]] = [
    click.option(
        "--model-store",
        type=FOLDER,
        default=DEFAULT_STORE,
        show_default=True,
        help="Folder of the archives that are named without a path.",
    ),
    server_option(
        "Server around the archives; also OFFPATH_SERVER. granian needs no Java (docs/granian.md).",
        envvar="OFFPATH_SERVER",
    ),
    click.option(
        "--host",
        default=DEFAULTS.host,
        show_default=True,
        help="Address to listen on. Beyond loopback, the door's --tokens or --behind-proxy is "
        "required.",
    ),
    click.option(
        "--port",
        type=PORT,
        default=DEFAULTS.port,
        show_default=True,
        help="Port for predictions; 0 takes a free one.",
    ),
    click.option(
        "--behind-proxy",
        is_flag=True,
        help="Listen on any --host without tokens, because something else guards the server: a "
        "proxy that does TLS and checks tokens, or a network that only trusted clients reach. "
        "Without --front, it must also limit connections and slow clients.",
    ),
    click.option(
        "--metrics-port",
        type=PORT,
        default=DEFAULTS.metrics_port,
        show_default=True,
        help="Port of /metrics; 0 takes a free one.",
    ),
    click.option(
        "--grpc-port",
        type=PORT,
        help="Port of TorchServe's gRPC inference API, on loopback; 0 takes a free one. Every user "
        "of this machine can then stop your models [default: closed].",
    ),
    click.option(
        "--config",
        type=FILE,
        help="A config.properties to use instead of ours. The options and arguments here win over "
        "its addresses, load_models and model_snapshot.",
    ),
    click.option(
        "--lenient",
        is_flag=True,
        help="Start although a key of --config or of an archive, or an OFFPATH_ variable, is one "
        "that nothing reads, or the spool of a prediction log cannot be written.",
    ),
    click.option(
        "--allow-cpu",
        is_flag=True,
        help="Serve an archive that asks for a GPU (--preset t4) on the CPU if there is no GPU.",
    ),
    click.option(
        "--sample",
        is_flag=True,
        help="Send the bundled photograph and show the answer.",
    ),
    click.option(
        "--once",
        is_flag=True,
        help="Stop as soon as the server is READY (and the sample answered).",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Print what would be served, with all settings in force, and start nothing.",
    ),
    click.option("--verbose", is_flag=True, help="Log every request."),
    click.option(
        "--log-dir",
        type=FOLDER,
        help=f"Folder of the log files [default: {DEFAULT_LOG_DIR}/PORT; with --port 0 logs are "
        "not kept].",
    ),
    click.option(
        "--drain-s",
        type=click.IntRange(1),
        default=DEFAULTS.drain_s,
        show_default=True,
        help="Seconds to wait for requests in flight at SIGTERM, Ctrl-C or a reload.",
    ),
    json_option("Print events as JSON."),
    # The names of the rest are attributes of DoorSettings.
    click.option(
        "--front/--no-front",
        default=None,
        help="Put nginx in front of the server: bodies never pass through Java "
        "(docs/front-door.md). The options below need --front [default: with --server granian, if "
        "nginx is installed and /dev/shm has room].",
    ),
    click.option(
        "--metrics-host",
        default=DEFAULTS.metrics_host,
        show_default=True,
        help="Address of /metrics, which needs no token.",
    ),
    click.option(
        "--tls-cert",
        type=FILE,
        help="Certificate chain, PEM. Turns on HTTPS, with HTTP/2 if nginx is known to be patched; "
        "needs --tls-key.",
    ),
    click.option("--tls-key", type=FILE, help="Key of the certificate, PEM."),
    click.option(
        "--tokens",
        type=FILE,
        help="File with one bearer token per line; each prediction then needs one. The file is "
        "read again when it changes.",
    ),
    click.option(
        "--client-ids",
        is_flag=True,
        help="Start the request's id with the client's x-request-id, if that is a UUID.",
    ),
    click.option("--explanations", is_flag=True, help="Open /explanations too."),
    click.option(
        "--front-memory",
        "memory",
        type=FOLDER,
        default=DEFAULTS.memory,
        show_default=True,
        help="Folder on a tmpfs for the request bodies.",
    ),
    click.option(
        "--unready-s",
        type=click.IntRange(0),
        default=DEFAULTS.unready_s,
        show_default=True,
        help="Seconds at the end in which /ping says 503 and requests are still accepted, for "
        "balancers that ask /ping.",
    ),
    click.option(
        "--allow-host",
        multiple=True,
        metavar="NAME",
        help="A name under which clients may reach a door, or Granian without a door, on loopback, "
        "besides loopback's own; web pages of other names get 403. Can be repeated.",
    ),
    click.option(
        "--also-port",
        type=click.IntRange(1, 65535),
        multiple=True,
        help="A further port for predictions. Can be repeated.",
    ),
    click.option(
        "--invocations",
        is_flag=True,
        help="Open /invocations, SageMaker's path to the only model (docs/clouds.md).",
    ),
    click.option(
        "--limit",
        "limits",
        multiple=True,
        metavar="NAME=NUMBER",
        callback=lambda _, __, given: dict(map(read_limit, given)),
        help="Change a limit; can be repeated. The defaults, and what is answered beyond them: "
        + "; ".join(f"{name}={default}: {text}" for name, (default, text) in LIMITS.items())
        + ".",
    ),
    split_option(
        "canary",
        "Let another version of a model answer a share of its requests, such as defects=2.0:5% "
        "(docs/canary.md).",
    ),
    click.option(
        "--canary-by",
        metavar="HEADER",
        help="Header whose value decides which version answers, such as x-user-id [default: the "
        "client's address].",
    ),
    split_option(
        "shadow",
        "Send copies of a share of a model's requests to another version, such as "
        "defects=2.0:10%. Nobody waits for its answers.",
    ),
]


def make_door_settings(
    options: dict[str, Any], is_default: bool = False, **common: Any
) -> DoorSettings | None:
    """Makes the settings of the door; None without `--front`.

    Args:
        options: values of the options from --front on.
        is_default: take the door without `--front` too, where it can run.
        common: settings from options that a server without a door has too.

    Raises:
        WrongOption: an option of the door is given without `--front`, or two do not fit.
    """
    options = dict(options)
    is_wanted, limits = options.pop("front"), options.pop("limits")
    if is_wanted or (is_wanted is None and is_default and can_run_front(options)):
        return DoorSettings(**common, **options, **limits)
    if limits:
        raise WrongOption("--limit needs --front")
    for name, value in options.items():
        # Granian looks at names itself.
        if value != getattr(DEFAULTS, name) and not (is_default and name == "allow_host"):
            option = "front-memory" if name == "memory" else name.replace("_", "-")
            raise WrongOption(f"--{option} needs --front")
    return None


def can_run_front(options: Mapping[str, Any]) -> bool:
    """Tells whether nginx is installed and the folder of the bodies is a tmpfs with some room."""
    memory = options["memory"]
    try:
        find_nginx()
    except MissingPackage:
        return False
    return is_tmpfs(memory) and free_bytes(memory) >= MIN_FRONT_BYTES


def choose_log_dir(log_dir: Path | None, port: int) -> Path | None:
    return log_dir or (DEFAULT_LOG_DIR / str(port) if port else None)


def check_host(
    host: str,
    door: DoorSettings | None = None,
    behind_proxy: bool = False,
) -> None:
    """Refuses to listen beyond this machine without the front door's tokens.

    Raises:
        WrongOption: `host` is not loopback and nothing guards the server, or it is an IPv6 address
            and there is no front door.
    """
    if ":" in host and door is None:
        # ConfigManager.java, ADDRESS_PATTERN.
        raise WrongOption(
            f"--host {host} is an IPv6 address, on which only the front door listens; use an IPv4 "
            "address, a host name, or --front"
        )
    has_tokens = door is not None and door.tokens is not None
    if has_tokens or behind_proxy:
        return
    is_loopback = ports.is_loopback(host)
    if not is_loopback:
        options = "--front --tokens FILE" if door is None else "--tokens FILE"
        raise WrongOption(
            f"--host {host} can be reached from other machines; --host 127.0.0.1 keeps the server "
            f"on this machine, {options} guards it, --behind-proxy says that something else does"
        )
