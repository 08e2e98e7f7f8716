"""Settings to start a server with, and config.properties, which every server reads."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from offpath.errors import WrongOption
from offpath.serving.process.ports import check_port_free, resolve_ports

LOOPBACK = "127.0.0.1"
CONF_DIR = Path(__file__).resolve().parents[1] / "conf"
# TorchServe's own defaults (ConfigManager.java) for the keys that this project looks at.
DEFAULTS = {
    "inference_address": "http://127.0.0.1:8080",
    "management_address": "http://127.0.0.1:8081",
    "metrics_address": "http://127.0.0.1:8082",
    "max_request_size": "6553500",
    "job_queue_size": "100",
}
# Port of an address that names none (Connector.java).
PORTS = {"inference_address": 80, "management_address": 8081, "metrics_address": 8082}
NUMBERS = (
    *("default_workers_per_model", "default_response_timeout", "default_startup_timeout"),
    *("job_queue_size", "max_request_size"),
)
MAX_INT = 2**31 - 1  # Java's
# Keys that every server of ours uses. With enable_envvars_config, TS_* of the environment win over
# them, but for the last ones.
VARIABLES = (
    *(*PORTS, *NUMBERS, "load_models", "service_envelope", "decode_input_request"),
    *("metrics_config", "disable_token_authorization"),
)
HONOURED = (*VARIABLES, "models", "model_snapshot", "enable_envvars_config")
ADDRESS = re.compile(r"http://([^:/]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
# Keys of config.properties whose value is the path of a file.
PATH_KEYS = ("metrics_config",)


@dataclass(frozen=True)
class ServerSettings:
    """Settings of one server.

    Attributes:
        models: archive file names in the store (`classifier.mar`), or `name=file.mar`.
        config: a config.properties to use instead of offpath's.
        server: `torchserve`, or `granian` without Java.
        stock: starts TorchServe as shipped, for comparisons: its own logging, and a
            config.properties with nothing but the addresses.
        host: IPv4 address or name that inference and metrics listen on. Management and gRPC stay
            on loopback.
        inference_port: 0 takes a free one, as for `metrics_port` and `grpc_port`.
        management_port: on loopback; 0 takes a free one, None uses a Unix socket in the run folder
            instead.
        grpc_port: on loopback; None closes gRPC.
        unix_sockets: inference and metrics listen on Unix sockets too, for the front door.
        allow_host: names that Granian on loopback answers to, besides loopback's own.
        allow_cpu: an archive that asks for a GPU may be served without one.
        lenient: the first start may lack a prediction log that was asked for.
        verbose: logs TorchServe's lines for each request.
        log_dir: folder of the logs, which stay; by default a folder that goes with the server.
        overrides: config.properties keys that win over everything else.
        env: additional environment of the server and its workers.
    """

    model_store: Path
    models: tuple[str, ...]
    config: Path | None = None
    server: str = "torchserve"
    stock: bool = False
    host: str = LOOPBACK
    inference_port: int = 8080
    management_port: int | None = None
    metrics_port: int = 8082
    grpc_port: int | None = None
    unix_sockets: bool = False
    allow_host: tuple[str, ...] = ()
    allow_cpu: bool = False
    lenient: bool = False
    verbose: bool = False
    log_dir: Path | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ports:
    inference: int
    management: int
    metrics: int


def find_config() -> Path:
    """Returns offpath's config.properties; in a checkout, that at its root."""
    return Path(__file__).parents[1].joinpath("conf", "config.properties").resolve()


def choose_ports(settings: ServerSettings) -> Ports:
    """Returns the ports to use: those asked for, and free ones for 0."""
    wanted = [settings.inference_port, settings.management_port or 0, settings.metrics_port]
    return Ports(*resolve_ports(settings.host, wanted))


def check_startable(settings: ServerSettings) -> None:
    """Checks what would make a start fail.

    Raises:
        WrongOption: there is no model store.
        ExpectedError: a port that was asked for is taken.
    """
    if not settings.model_store.is_dir():
        raise WrongOption(
            f"there is no model store at {settings.model_store}; `offpath archive` makes one"
        )
    if settings.grpc_port:
        check_port_free(LOOPBACK, settings.grpc_port, "--grpc-port")
    if settings.unix_sockets:
        return
    for kind in ("inference", "management", "metrics"):
        port = getattr(settings, f"{kind}_port")
        host = LOOPBACK if kind == "management" else settings.host
        if port:
            option = "--port" if kind == "inference" else f"--{kind}-port"
            check_port_free(host, port, option)


def socket_kinds(settings: ServerSettings) -> tuple[str, ...]:
    """Returns those of inference, management and metrics that listen on Unix sockets."""
    if settings.unix_sockets:
        return ("inference", "management", "metrics")
    # `offpath serve` answers at the port of /metrics, with what the server says and more.
    metrics = () if settings.stock else ("metrics",)
    return (*metrics, "management") if settings.management_port is None else metrics


def socket_path(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.sock"


def read_config(settings: ServerSettings) -> dict[str, str]:
    """Reads a server's properties file and makes the paths in it absolute; empty for `stock`.

    Raises:
        WrongOption: the file cannot be read, or names a file that does not exist.
    """
    return {} if settings.stock else load_config(settings.config or find_config())


def load_config(path: Path) -> dict[str, str]:
    """Reads a properties file as `read_config` does."""
    properties = read_properties(path)
    if properties.get("enable_envvars_config", "").lower() == "true":
        found = {key: os.environ.get(f"TS_{key.upper()}") for key in VARIABLES}
        properties |= {key: value for key, value in found.items() if value is not None}
    for key in NUMBERS:
        text = properties.get(key, "1")
        low = 0 if key == "default_workers_per_model" else 1
        if not re.fullmatch("[0-9]{1,10}", text) or not low <= int(text) <= MAX_INT:
            raise WrongOption(
                f"{path}: {key} is {text!r:.80}, expected a whole number from {low} to {MAX_INT}"
            )
    for key in PATH_KEYS:
        if key in properties:
            properties[key] = str(_resolve_file(properties[key], path.resolve().parent))
    return properties


def read_effective(settings: ServerSettings) -> dict[str, str]:
    """Reads the properties in force; raises WrongOption as `read_config` does."""
    return {**DEFAULTS, **read_config(settings), **settings.overrides}


def read_address(properties: Mapping[str, str], key: str) -> tuple[str, int]:
    """Returns host and port of an address.

    Raises:
        WrongOption: it is not of the form http://HOST:PORT.
    """
    found = ADDRESS.fullmatch(properties[key])
    if found is None or int(found[2] or 0) > 65535:
        raise WrongOption(
            f"config.properties: {key} is {properties[key]!r:.80}, expected http://HOST:PORT; TLS "
            "is the front door's (--tls-cert, --tls-key)"
        )
    return found[1], int(found[2] or PORTS[key])


def _resolve_file(value: str, folder: Path) -> Path:
    """Finds a file named in a properties file, from that file's folder or in our conf folder."""
    for candidate in (folder / value, CONF_DIR / Path(value).name):
        if candidate.is_file():
            return candidate
    raise WrongOption(
        f"config.properties names {value!r}, which is neither in {folder} nor in {CONF_DIR}"
    )


def parse_properties(text: str) -> dict[str, str]:
    """Parses `key=value` lines; `#` and `!` start comments, a final backslash continues a line.

    This is the part of java.util.Properties that TorchServe's files use: no unicode escapes, and no
    `:` as separator (addresses contain colons, and ts/model_server.py reads only `=`). A snapshot
    that TorchServe has saved escapes colons and line ends.

    Raises:
        WrongOption: a line has no `=`.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise WrongOption(f"line {number}: {line!r} is not key=value")
        properties[key.strip()] = re.sub(
            r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), value.strip()
        )
    return properties


def read_properties(path: Path) -> dict[str, str]:
    """Reads a properties file.

    Raises:
        WrongOption: the file is missing, is not text, or has a line without `=`.
    """
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongOption(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WrongOption(f"{path} is not UTF-8 text: {error}") from error
    except WrongOption as error:
        raise WrongOption(f"{path}, {error}") from error


def _logical_lines(text: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    pending, start = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not pending and (not line or line[0] in "#!"):
            continue
        start = start if pending else number
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        lines.append((start, pending + line))
        pending = ""
    if pending:
        lines.append((start, pending))
    return lines
