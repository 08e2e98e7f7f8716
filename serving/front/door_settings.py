"""What the front door is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from offpath.handler.errors import WrongOption
from offpath.serving.front.bodies import LEAST_BODIES, SHM
from offpath.serving.torchserve.server_settings import LOOPBACK

# Requests that wait in TorchServe; 256 clients fill a quarter. The bodies of so many small ones,
# 64 kB each at most, are a sixteenth of Java's heap; at 100 a second the last one waits 10 s.
QUEUE = 1000
# Bodies from this size on go by name: at 55 kB both roads are alike, from 100 kB on the name is
# better, 8 % there (docs/research/2026-11-22-front-door.md).
BY_NAME_FROM_BYTES = 64 * 1024
# What nginx holds of a body in its own memory.
BUFFER_BYTES = 256 * 1024


@dataclass(frozen=True)
class FrontSettings:
    """How to start the front door.

    Attributes:
        host: IPv4 or IPv6 address, or name, that it listens on.
        port: 0 takes a free one; so for `metrics_port`.
        metrics_host: address of /metrics, which asks for no token.
        tls_cert: certificate chain, PEM; with it the door speaks TLS and HTTP/2 alone.
        tls_key: its key, PEM.
        tokens: file with a bearer token a line; each prediction then needs one.
        drain_s: how long requests may still take when the door is closed or its server replaced.
        client_connections: requests of one client at a time; 429 beyond.
        client_rate: requests of one client a second; 0: as many as it likes.
        client_timeout_s: how long a client may send nothing in the middle of a request.
        client_ids: a client's x-request-id that is a UUID begins the request's id.
        explanations: /explanations is open too.
        invocations: /invocations, SageMaker's path, leads to the only model.
        queue: requests that TorchServe may hold; 503 beyond.
        memory: the tmpfs that holds the bodies.
        front_bodies: how many of the largest must have room there at the start.
        by_name_from_bytes: smaller bodies pass through TorchServe; not larger than the next one.
        buffer_bytes: larger bodies are a file; these two have no option, measurements turn them.
        verbose: every request in `front-access.log`, every complaint in `front.log`.
    """

    host: str = LOOPBACK
    port: int = 8080
    metrics_host: str = LOOPBACK
    metrics_port: int = 8082
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tokens: Path | None = None
    drain_s: int = 30
    client_connections: int = 512
    client_rate: int = 0
    client_timeout_s: int = 10
    client_ids: bool = False
    explanations: bool = False
    invocations: bool = False
    queue: int = QUEUE
    memory: Path = SHM
    by_name_from_bytes: int = BY_NAME_FROM_BYTES
    front_bodies: int = LEAST_BODIES
    buffer_bytes: int = BUFFER_BYTES
    verbose: bool = False

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise WrongOption("--tls-cert and --tls-key are given together")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise WrongOption(f"no file {path}")
