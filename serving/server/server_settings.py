"""Settings to start a server with, its ports and its Unix sockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from offpath.handler.error_kinds import BUSY
from offpath.serving.process.ports import check_port_free, resolve_ports

LOOPBACK = "127.0.0.1"


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
        busy_status: status of a request that Granian refuses because it is full.
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
    busy_status: int = BUSY.status
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
    # TorchServe always opens both. Two servers on its defaults 7070 and 7071 would collide.
    grpc: int = 0
    grpc_management: int = 0


def choose_ports(settings: ServerSettings) -> Ports:
    """Returns the ports to use: those asked for, and free ones for 0.

    Raises:
        ExpectedError: a port that was asked for is taken.
    """
    if settings.grpc_port:
        check_port_free(LOOPBACK, settings.grpc_port, "--grpc-port")
    wanted = {
        "--port": (settings.host, settings.inference_port),
        "--management-port": (LOOPBACK, settings.management_port or 0),
        "--metrics-port": (settings.host, settings.metrics_port),
    }
    for option, (host, port) in wanted.items():
        if port and not settings.unix_sockets:
            check_port_free(host, port, option)
    grpc = resolve_ports(LOOPBACK, [settings.grpc_port or 0, 0])
    return Ports(*resolve_ports(settings.host, [port for _, port in wanted.values()]), *grpc)


def socket_kinds(settings: ServerSettings) -> tuple[str, ...]:
    """Returns those of inference, management and metrics that listen on Unix sockets."""
    if settings.unix_sockets:
        return ("inference", "management", "metrics")
    # `offpath serve` answers at the port of /metrics, with what the server says and more.
    metrics = () if settings.stock else ("metrics",)
    return (*metrics, "management") if settings.management_port is None else metrics


def socket_path(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.sock"
