"""Options of `offpath serve`, and the checks between them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from offpath.commands.declared_options import argument, option
from offpath.commands.shared_options import FOLDER, MODEL_STORE, SERVERS
from offpath.errors import MissingPackage, WrongOption
from offpath.serving.front.bodies import MIN_BODIES, free_bytes, is_tmpfs
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.nginx import find_nginx
from offpath.serving.front.splits import Split, parse_split
from offpath.serving.process import ports
from offpath.serving.server.server_settings import ServerSettings

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
PORT = click.IntRange(0, 65535)
SPLITS: Any = {"type": parse_split, "multiple": True, "metavar": "MODEL=VERSION:SHARE%"}
DEFAULTS = DoorSettings()
# The default number of the largest bodies (max_request_size of config.properties).
MIN_FRONT_BYTES = MIN_BODIES * (32 << 20)
DEFAULT_LOG_DIR = Path(".offpath/logs")
# Name of a limit -> what it limits. The names are attributes of DoorSettings.
LIMITS = {
    "queue": "requests that may wait in the server (503)",
    "client-connections": "requests that one client address has in flight (429)",
    "client-rate": "requests per second of one client address, 0 for any number (429)",
    "client-timeout-s": "seconds without a byte of a request that has begun",
    "front-bodies": "bodies of the largest size for which --front-memory must have room "
    "(503 later)",
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


@dataclass(frozen=True)
class ServeOptions:
    """Arguments and options of every server, in the order of `--help`."""

    models: tuple[str, ...] = argument("[PATH.mar|NAME|NAME=PATH.mar|FOLDER]...", nargs=-1)
    model_store: Path = option(
        "Folder of the archives that are named without a path.", type=FOLDER, default=MODEL_STORE
    )
    server: str = option(
        "Server around the archives; also OFFPATH_SERVER. granian needs no Java (docs/granian.md).",
        type=SERVERS,
        default="torchserve",
        envvar="OFFPATH_SERVER",
    )
    host: str = option(
        "Address to listen on. Beyond loopback, the door's --tokens or --behind-proxy is "
        "required.",
        default=DEFAULTS.host,
    )
    port: int = option(
        "Port for predictions; 0 takes a free one.", type=PORT, default=DEFAULTS.port
    )
    behind_proxy: bool = option(
        "Listen on any --host without tokens, because something else guards the server: a "
        "proxy that does TLS and checks tokens, or a network that only trusted clients reach. "
        "Without --front, it must also limit connections and slow clients."
    )
    metrics_port: int = option(
        "Port of /metrics; 0 takes a free one.", type=PORT, default=DEFAULTS.metrics_port
    )
    grpc_port: int | None = option(
        "Port of TorchServe's gRPC inference API, on loopback; 0 takes a free one. Every user "
        "of this machine can then stop your models [default: closed].",
        type=PORT,
    )
    config: Path | None = option(
        "A config.properties to use instead of ours. The options and arguments here win over "
        "its addresses, load_models and model_snapshot.",
        type=FILE,
    )
    lenient: bool = option(
        "Start although a key of --config or of an archive, or an OFFPATH_ variable, is one "
        "that nothing reads, or the spool of a prediction log cannot be written."
    )
    allow_cpu: bool = option(
        "Serve an archive that asks for a GPU (--preset t4) on the CPU if there is no GPU."
    )
    sample: bool = option("Send the bundled photograph and show the answer.")
    once: bool = option("Stop as soon as the server is READY (and the sample answered).")
    dry_run: bool = option(
        "Print what would be served, with all settings in force, and start nothing."
    )
    verbose: bool = option("Log every request.")
    log_dir: Path | None = option(
        f"Folder of the log files [default: {DEFAULT_LOG_DIR}/PORT; with --port 0 logs are "
        "not kept].",
        type=FOLDER,
    )
    drain_s: int = option(
        "Seconds to wait for requests in flight at SIGTERM, Ctrl-C or a reload.",
        type=click.IntRange(1),
        default=DEFAULTS.drain_s,
    )
    as_json: bool = option("Print events as JSON.", "--json")
    front: bool | None = option(
        "Put nginx in front of the server: bodies never pass through Java "
        "(docs/front-door.md). The options below need --front [default: with --server granian, if "
        "nginx is installed and /dev/shm has room].",
        "--front/--no-front",
        default=None,
    )


@dataclass(frozen=True)
class DoorOptions:
    """Options that need `--front`, named like the attributes of DoorSettings."""

    metrics_host: str = option(
        "Address of /metrics, which needs no token.", default=DEFAULTS.metrics_host
    )
    tls_cert: Path | None = option(
        "Certificate chain, PEM. Turns on HTTPS, with HTTP/2 if nginx is known to be patched; "
        "needs --tls-key.",
        type=FILE,
    )
    tls_key: Path | None = option("Key of the certificate, PEM.", type=FILE)
    tokens: Path | None = option(
        "File with one bearer token per line; each prediction then needs one. The file is "
        "read again when it changes.",
        type=FILE,
    )
    client_ids: bool = option(
        "Start the request's id with the client's x-request-id, if that is a UUID."
    )
    explanations: bool = option("Open /explanations too.")
    memory: Path = option(
        "Folder on a tmpfs for the request bodies.",
        "--front-memory",
        type=FOLDER,
        default=DEFAULTS.memory,
    )
    unready_s: int = option(
        "Seconds at the end in which /ping says 503 and requests are still accepted, for "
        "balancers that ask /ping.",
        type=click.IntRange(0),
        default=DEFAULTS.unready_s,
    )
    allow_host: tuple[str, ...] = option(
        "A name under which clients may reach a door, or Granian without a door, on loopback, "
        "besides loopback's own; web pages of other names get 403. Can be repeated.",
        multiple=True,
        metavar="NAME",
    )
    also_port: tuple[int, ...] = option(
        "A further port for predictions. Can be repeated.",
        type=click.IntRange(1, 65535),
        multiple=True,
    )
    invocations: bool = option(
        "Open /invocations, SageMaker's path to the only model (docs/clouds.md)."
    )
    limits: tuple[tuple[str, int], ...] = option(
        "Change a limit; can be repeated. The defaults, and what is answered beyond them: "
        + "; ".join(
            f"{name}={getattr(DEFAULTS, name.replace('-', '_'))}: {text}"
            for name, text in LIMITS.items()
        )
        + ".",
        "--limit",
        type=read_limit,
        multiple=True,
        metavar="NAME=NUMBER",
    )
    busy_status: int = option(
        "Status of a request that is refused because the server is full: 429 for balancers that "
        "stop asking a server that answers 5xx. Granian needs no --front for it.",
        type=click.Choice((503, 429)),
        default=DEFAULTS.busy_status,
        metavar="[503|429]",
    )
    canary: tuple[Split, ...] = option(
        "Let another version of a model answer a share of its requests, such as defects=2.0:5% "
        "(docs/canary.md). Can be repeated.",
        **SPLITS,
    )
    canary_by: str | None = option(
        "Header whose value decides which version answers, such as x-user-id [default: the "
        "client's address].",
        metavar="HEADER",
    )
    shadow: tuple[Split, ...] = option(
        "Send copies of a share of a model's requests to another version, such as "
        "defects=2.0:10%. Nobody waits for its answers. Can be repeated.",
        **SPLITS,
    )


def make_door_settings(
    options: ServeOptions, asked: DoorOptions, server: ServerSettings
) -> DoorSettings | None:
    """Makes the settings of the door; None without one, which Granian has where it can run.

    Args:
        options: those of every server.
        asked: those of the door.
        server: has the addresses, which may be of a config.properties.

    Raises:
        WrongOption: an option of the door is given without `--front`, or two do not fit.
    """
    is_granian = server.server == "granian"
    if options.front or (options.front is None and is_granian and can_run_front(asked.memory)):
        named: dict[str, Any] = {**vars(asked), **dict(asked.limits)}
        del named["limits"]
        return DoorSettings(
            host=server.host,
            port=server.inference_port,
            metrics_port=server.metrics_port,
            drain_s=options.drain_s,
            verbose=options.verbose,
            **named,
        )
    spellings = {"memory": "front-memory", "limits": "limit"}
    for name, value in vars(asked).items():
        # Granian looks at names itself, and refuses what it has no room for.
        is_its_own = is_granian and name in ("allow_host", "busy_status")
        if value != getattr(DEFAULTS, name, ()) and not is_its_own:
            spelling = spellings.get(name, name.replace("_", "-"))
            raise WrongOption(f"--{spelling} needs --front")
    return None


def can_run_front(memory: Path) -> bool:
    """Tells whether nginx is installed and the folder of the bodies is a tmpfs with some room."""
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
    if not (has_tokens or behind_proxy or ports.is_loopback(host)):
        options = "--front --tokens FILE" if door is None else "--tokens FILE"
        raise WrongOption(
            f"--host {host} can be reached from other machines; --host 127.0.0.1 keeps the server "
            f"on this machine, {options} guards it, --behind-proxy says that something else does"
        )
