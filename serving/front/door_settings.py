"""Settings of the front door, its folders, and its file of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from offpath.errors import ExpectedError, WrongOption
from offpath.handler.error_kinds import BUSY
from offpath.serving.front.bodies import MIN_BODIES, SHM
from offpath.serving.front.splits import HEADER, Split
from offpath.serving.process.ports import check_port_free, resolve_ports
from offpath.serving.server.server_settings import LOOPBACK

# RFC 6750, section 2.1. Shorter tokens could be guessed.
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")
HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
# Requests that may wait in TorchServe; 256 clients fill a quarter of this. At 100 requests per
# second the last one waits 10 s.
QUEUE = 1000
CONF = "nginx.conf"


@dataclass(frozen=True)
class DoorSettings:
    """Settings of the front door.

    Attributes:
        host: IPv4 or IPv6 address, or name, to listen on.
        port: port for predictions; 0 takes a free one.
        metrics_host: address of /metrics, which needs no token.
        metrics_port: port of /metrics; 0 takes a free one.
        tls_cert: certificate chain, PEM; with it the door speaks only TLS.
        tls_key: key of the certificate, PEM.
        tokens: file with one bearer token per line; each prediction then needs one of them.
        drain_s: seconds that requests in flight may take when the door closes or its server is
            replaced.
        unready_s: seconds before that in which /ping says 503 and all requests are answered.
        client_connections: requests that one client may have in flight; more get 429.
        client_rate: requests per second of one client; 0 sets no limit.
        client_timeout_s: seconds that a client may send nothing in the middle of a request.
        client_ids: a client's x-request-id that is a UUID becomes the start of the request's id.
        explanations: opens /explanations too.
        allow_host: names that a door on loopback answers to, besides loopback's own.
        also_port: further ports of predictions.
        invocations: /invocations, SageMaker's path, leads to the only model.
        queue: requests that TorchServe may hold; more get `busy_status`.
        busy_status: status of a request that is refused because the server is full.
        canary: versions that answer a share of their model's requests, unless suspended.
        canary_by: header whose value decides who answers; None takes the client's address.
        shadow: versions that get copies of a share of their model's requests.
        memory: folder on the tmpfs that holds the bodies.
        front_bodies: number of the largest bodies that must fit there at the start.
        pages: files of the page that the door shows at /; only `offpath demo` has them.
        verbose: logs every request to `front-access.log`, which otherwise has each 5xx.
    """

    host: str = LOOPBACK
    port: int = 8080
    metrics_host: str = LOOPBACK
    metrics_port: int = 8082
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tokens: Path | None = None
    drain_s: int = 30
    unready_s: int = 0
    client_connections: int = 512
    client_rate: int = 0
    client_timeout_s: int = 10
    client_ids: bool = False
    explanations: bool = False
    allow_host: tuple[str, ...] = ()
    also_port: tuple[int, ...] = ()
    invocations: bool = False
    queue: int = QUEUE
    busy_status: int = BUSY.status
    canary: tuple[Split, ...] = ()
    canary_by: str | None = None
    shadow: tuple[Split, ...] = ()
    memory: Path = SHM
    front_bodies: int = MIN_BODIES
    pages: tuple[Path, ...] = ()
    verbose: bool = False

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise WrongOption("--tls-cert and --tls-key must be given together")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise WrongOption(f"there is no file {path}")
        for name in self.allow_host:
            if HOST_NAME.fullmatch(name) is None:
                raise WrongOption(
                    f"--allow-host {name!r} is not a host's name, such as models.example.org"
                )
        if self.canary_by is not None and HEADER.fullmatch(self.canary_by) is None:
            raise WrongOption(
                f"--canary-by {self.canary_by!r} is not the name of a header, such as x-user-id"
            )
        models = [split.model for split in self.splits]
        for model in models:
            if models.count(model) > 1:
                raise WrongOption(
                    f"{model!r} has two canaries or shadows; name it once with --canary or --shadow"
                )

    @property
    def addresses(self) -> list[str]:
        return [_join(self.host, port) for port in (self.port, *self.also_port)]

    @property
    def metrics_address(self) -> str:
        return _join(self.metrics_host, self.metrics_port)

    @property
    def splits(self) -> tuple[Split, ...]:
        return (*self.canary, *self.shadow)

    def list_ended(self, new: DoorSettings) -> list[str]:
        """Returns the canaries and shadows whose model has none of that kind in new settings."""
        return [
            f"{kind} {old}"
            for kind in ("canary", "shadow")
            for old in getattr(self, kind)
            if old.model not in {split.model for split in getattr(new, kind)}
        ]

    def change_splits(
        self, canary: Iterable[Split], shadow: Iterable[Split], stop: Iterable[str]
    ) -> DoorSettings:
        """Returns settings in which these splits replace those of their models, and of `stop`.

        Raises:
            WrongOption: a model is named twice, or one to stop has no canary and no shadow.
        """
        for model in set(stop) - {split.model for split in self.splits}:
            raise WrongOption(f"{model!r} has no canary and no shadow that could stop")
        new = {split.model for split in (*canary, *shadow)} | set(stop)
        return replace(
            self,
            canary=(*(s for s in self.canary if s.model not in new), *canary),
            shadow=(*(s for s in self.shadow if s.model not in new), *shadow),
        )


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def settle_ports(door: DoorSettings) -> DoorSettings:
    """Replaces each port 0 by a free one.

    Raises:
        ExpectedError: a port that was asked for is taken, or asked for twice.
    """
    if len({door.port, *door.also_port}) <= len(door.also_port):
        raise WrongOption("--also-port: expected ports that differ from each other and from --port")
    for port, option in ((door.port, "--port"), *((one, "--also-port") for one in door.also_port)):
        if port and ":" not in door.host:
            check_port_free(door.host, port, option)
    if door.metrics_port:
        check_port_free(door.metrics_host, door.metrics_port, "--metrics-port")
    if ":" in door.host:
        if not door.port:
            raise ExpectedError("an IPv6 --host needs a --port other than 0")
        (metrics,) = resolve_ports(door.metrics_host, [door.metrics_port])
        return replace(door, metrics_port=metrics)
    port, metrics = resolve_ports(door.host, [door.port, door.metrics_port])
    return replace(door, port=port, metrics_port=metrics)


@dataclass(frozen=True)
class DoorPlace:
    """Folders of one front door, and its secret.

    Attributes:
        run: folder of its configuration and links, mode 0700.
        bodies: folder of the request bodies (bodies.py).
        room_bytes: memory that the bodies may take together.
        log: folder of its logs.
        key: secret by which the handler recognises the door.
    """

    run: Path
    bodies: Path
    room_bytes: int
    log: Path
    key: str

    @property
    def config(self) -> Path:
        return self.run / CONF

    @property
    def error_log(self) -> Path:
        return self.log / "front.log"

    @property
    def access_log(self) -> Path:
        return self.log / "front-access.log"


def read_tokens(path: Path) -> list[str]:
    """Reads a file of bearer tokens: one per line, `#` starts a comment.

    nginx compares a request with the tokens one after the other: dozens are fine, thousands are a
    job for an identity provider.

    Raises:
        WrongOption: the file cannot be read, has no token, or a line is not a token. The message
            has the line's number and never its content.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongOption(f"cannot read tokens from {path}: {error}") from error
    tokens = []
    for number, line in enumerate(lines, start=1):
        token = line.partition("#")[0].strip()
        if not token:
            continue
        if TOKEN.fullmatch(token) is None:
            raise WrongOption(
                f"{path}, line {number} is not a token: expected 16 to 512 letters, digits and "
                "._~+/-, such as `openssl rand -hex 32` prints"
            )
        tokens.append(token)
    if not tokens:
        raise WrongOption(
            f"{path} has no token, so every request would be refused; add one per line"
        )
    return tokens
