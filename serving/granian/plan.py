"""The plan of a server, a message that tells the supervisor and its workers what to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from offpath.handler.serving_settings import ServingSettings
from offpath.serving.server.served_model import ServedModel

# Ends a second name of a worker's socket, which always leads to that worker.
FIXED = ".fixed"


@dataclass(frozen=True)
class WorkerPlan:
    """One worker, and the model that it serves.

    Attributes:
        number: its place among all workers of the server.
        folder: the unpacked archive.
        changed_ns: time at which the archive was changed.
        socket: path of its Unix socket; None if it listens at the server's port, with others.
        queue: requests that it may hold.
    """

    model: ServedModel
    number: int
    folder: str
    changed_ns: int
    socket: str | None
    queue: int

    @property
    def log_name(self) -> str:
        return f"W-{self.number}-{self.model.name}_{self.model.version}"


@dataclass(frozen=True)
class ForeignSettings:
    """The settings in config.properties for handlers that are not offpath's.

    Attributes:
        envelope: name of a module of ts.torch_handler.request_envelope; empty for none.
        decode_input: JSON and text are decoded before the handler gets them.
        metrics_config: path of the metrics.yaml with the metrics that a handler can get by name;
            empty for TorchServe's own.
    """

    envelope: str = ""
    decode_input: bool = True
    metrics_config: str = ""


@dataclass(frozen=True)
class Plan:
    """All workers of a server, and what they have in common.

    Attributes:
        names: names that it answers to, besides loopback's own; None answers to every name.
        port: where workers without a Unix socket listen.
        max_bytes: bytes of bodies that one worker may hold.
        busy_status: of a request that a full worker refuses.
    """

    workers: tuple[WorkerPlan, ...]
    host: str
    port: int
    has_door: bool
    max_body_bytes: int
    max_bytes: int
    busy_status: int
    foreign: ForeignSettings = ForeignSettings()
    names: tuple[str, ...] | None = None

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def read_plan(text: bytes) -> Plan:
    content = json.loads(text)
    workers = [
        WorkerPlan(**{**worker, "model": _read_model(**worker["model"])})
        for worker in content.pop("workers")
    ]
    return Plan(tuple(workers), foreign=ForeignSettings(**content.pop("foreign")), **content)


def _read_model(settings: dict[str, Any], **values: Any) -> ServedModel:
    return ServedModel(settings=ServingSettings(**settings), **values)
