"""What a TorchServe is started with, and the config.properties that follows from it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from offpath.handler.errors import WrongOption
from offpath.serving.process.ports import check_port_free, resolve_ports
from offpath.serving.torchserve.properties import read_properties

LOOPBACK = "127.0.0.1"
CONF_DIR = Path(__file__).resolve().parents[1] / "conf"
# Keys of config.properties that hold a file's path.
PATH_KEYS = ("metrics_config",)
# TorchServe opens its two gRPC ports always. With this certificate, whose key is another one's, no
# handshake gets past the server's own first word (conf/README.md): they are closed.
CLOSED_GRPC = {
    "enable_grpc_ssl": "true",
    "certificate_file": str(CONF_DIR / "grpc-closed.crt"),
    "private_key_file": str(CONF_DIR / "grpc-closed.key"),
}


@dataclass(frozen=True)
class ServerSettings:
    """How to start one TorchServe.

    Attributes:
        model_store: folder with the archives.
        models: archive file names in the store (`classifier.mar`), or `name=file.mar`.
        config: a config.properties to use instead of ours.
        stock: TorchServe as it comes, for comparisons: no config.properties but the addresses,
            its own logging.
        host: IPv4 address or name that inference and metrics listen on; management and gRPC, which
            nobody needs from afar, stay on loopback.
        inference_port: 0 takes a free one; so for the other two.
        management_port: None: no port but a socket in a folder of the server's own.
        grpc_port: of gRPC's inference API, on loopback; 0 takes a free one.
        unix_sockets: inference and metrics listen on such sockets too: for the front door.
        enable_model_api: models may be registered and removed over the management API.
        grpc: the two gRPC ports, on loopback, answer.
        token_auth: every call needs a token from TorchServe's key file.
        allow_cpu: an archive that asks for a GPU may be served without one.
        fork_workers: workers are forked from one process that has imported torch (Linux; never
            with `stock`).
        verbose: TorchServe's own log lines, per request, are written.
        log_dir: where the logs go and stay; by default below the run folder.
        overrides: config.properties keys that win over everything else.
        env: extra environment of the server and its workers.
    """

    model_store: Path
    models: tuple[str, ...]
    config: Path | None = None
    stock: bool = False
    host: str = LOOPBACK
    inference_port: int = 8080
    management_port: int | None = None
    metrics_port: int = 8082
    grpc_port: int = 0
    unix_sockets: bool = False
    enable_model_api: bool = False
    grpc: bool = False
    token_auth: bool = False
    allow_cpu: bool = False
    fork_workers: bool = True
    verbose: bool = False
    log_dir: Path | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ports:
    """The ports of one running server."""

    inference: int
    management: int
    metrics: int
    grpc_inference: int
    grpc_management: int


def find_config() -> Path:
    """Returns our config.properties: beside the package in a checkout, else where a wheel puts it.

    Raises:
        WrongOption: it is in neither place.
    """
    candidates = [
        Path(__file__).parents[3] / "config.properties",
        Path(sys.prefix) / "share" / "offpath" / "config.properties",
    ]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    places = " and ".join(str(candidate) for candidate in candidates)
    raise WrongOption(f"no config.properties at {places}; name one with --config")


def choose_ports(settings: ServerSettings) -> Ports:
    """Settles the ports: those asked for, free ones for 0 and for gRPC.

    TorchServe opens its two gRPC ports always, and two servers on its defaults 7070 and 7071
    would collide, so they are free ones unless the settings say more.
    """
    overrides = settings.overrides
    grpc = [
        int(overrides.get("grpc_inference_port", settings.grpc_port)),
        int(overrides.get("grpc_management_port", 0)),
    ]
    management = settings.management_port or 0
    wanted = [settings.inference_port, management, settings.metrics_port]
    return Ports(*resolve_ports(settings.host, wanted + grpc))


def check_startable(settings: ServerSettings) -> None:
    """Looks for what would end a server's start.

    Raises:
        WrongOption: no model store, or a port that was asked for is taken.
    """
    if not settings.model_store.is_dir():
        raise WrongOption(
            f"no model store at {settings.model_store}; `offpath archive --output` makes one"
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
    """Which of inference, management and metrics listen on sockets."""
    if settings.unix_sockets:
        return ("inference", "management", "metrics")
    return ("management",) if settings.management_port is None else ()


def socket_path(folder: Path, kind: str) -> Path:
    """Where a server listens for one of `socket_kinds`."""
    return folder / f"{kind}.sock"


def build_properties(
    settings: ServerSettings, ports: Ports, folder: Path = Path("/tmp")
) -> dict[str, str]:
    """Returns the effective config.properties of a server.

    Args:
        settings: what to start.
        ports: see `choose_ports`.
        folder: of its sockets, where it has some.

    Raises:
        WrongOption: the properties file cannot be read, or names a file that is not there.
    """
    properties = read_config(settings)
    properties.update(_addresses(settings.host, ports))
    for kind in socket_kinds(settings):
        properties[f"{kind}_address"] = f"unix:{socket_path(folder, kind)}"
    properties["load_models"] = ",".join(settings.models)
    properties["disable_token_authorization"] = _flag(not settings.token_auth)
    if settings.enable_model_api:
        properties["enable_model_api"] = "true"
    if not (settings.grpc or settings.stock or CLOSED_GRPC.keys() & properties.keys()):
        properties.update(CLOSED_GRPC)
    properties.update(settings.overrides)
    return properties


def read_config(settings: ServerSettings) -> dict[str, str]:
    """The properties file of a server, with the paths in it made absolute; empty for `stock`.

    Raises:
        WrongOption: it cannot be read, or names a file that is not there.
    """
    if settings.stock:
        return {}
    path = settings.config or find_config()
    properties = read_properties(path)
    for key in PATH_KEYS:
        if key in properties:
            properties[key] = str(_resolve_file(properties[key], path.resolve().parent))
    return properties


def _resolve_file(value: str, folder: Path) -> Path:
    """Finds a file named in a properties file: from that file's folder, else in our conf folder."""
    for candidate in (folder / value, CONF_DIR / Path(value).name):
        if candidate.is_file():
            return candidate
    raise WrongOption(
        f"{value!r} in config.properties is not a file in {folder} or {CONF_DIR}"
    )


def _addresses(host: str, ports: Ports) -> dict[str, str]:
    return {
        "inference_address": f"http://{host}:{ports.inference}",
        "management_address": f"http://{LOOPBACK}:{ports.management}",
        "metrics_address": f"http://{host}:{ports.metrics}",
        "grpc_inference_address": LOOPBACK,
        "grpc_management_address": LOOPBACK,
        "grpc_inference_port": str(ports.grpc_inference),
        "grpc_management_port": str(ports.grpc_management),
    }


def _flag(value: bool) -> str:
    return "true" if value else "false"
