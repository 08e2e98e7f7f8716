"""Our server behind its front door, as `offpath serve --front` starts it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.sampling import Groups
from offpath.profiling.servers import archives
from offpath.profiling.servers.put_store import Beside
from offpath.profiling.servers.torchserve import (
    RunningTorchServe,
    TorchServeAdapter,
    make_offpath_direct,
    why_no_granian,
)
from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.nginx import find_nginx
from offpath.serving.front.one_host import OneHostSession
from offpath.serving.torchserve.server import TorchServe
from offpath.serving.torchserve.session import View

# Free ports; all clients of a benchmark share one address.
DOOR = DoorSettings(port=0, metrics_port=0, client_connections=10_000)
# What a variant may change of DoorSettings: `--variant NAME=offpath:front.KEY=VALUE`.
FRONT_KEYS = ("buffer_bytes", "queue")
# Group of the door's processes, which counts with the front end and is also shown alone.
NGINX = "nginx"


class RunningBehindDoor(RunningTorchServe):
    """A ready TorchServe or Granian behind a door."""

    def __init__(self, server: TorchServe, door: Door, began_s: float | None) -> None:
        super().__init__(server, began_s=began_s)
        self._door = door
        self.predict_url = f"{door.url}/predictions/{archives.NAME}"

    def groups(self) -> Groups:
        return {**super().groups(), NGINX: find_nginx_pids(self._door)}

    def is_running(self) -> bool:
        return super().is_running() and self._door.nginx.is_running()


def find_nginx_pids(door: Door) -> list[int]:
    return [door.nginx.pid, *door.nginx.worker_pids()]


@dataclass
class FrontDoorAdapter(TorchServeAdapter):
    """Our archive behind the front door; `front` has keys of FRONT_KEYS that differ from `DOOR`."""

    front: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        door = {f"front.{name}": value for name, value in self.front.items()}
        nginx = f"nginx {find_nginx().version_text}"
        return super().settings | {"front": nginx, **door}

    def why_not(self) -> str | None:
        try:
            find_nginx()
        except ExpectedError as error:
            return str(error)
        return super().why_not()

    @contextmanager
    def running(self) -> Iterator[RunningBehindDoor]:
        began_s = time.perf_counter()
        settings = self._make_settings(Beside())
        door = replace(DOOR, **self.front)
        session = OneHostSession(lambda _: settings, door, View())
        try:
            session.start()
            yield RunningBehindDoor(session.rotation.current, session.door, began_s)
        finally:
            session.stop()


def make_offpath(model: ModelUnderTest, cores: int) -> FrontDoorAdapter:
    """The archive of `offpath-direct`, with nginx before TorchServe."""
    direct = make_offpath_direct(model, cores)
    return FrontDoorAdapter("offpath", direct.build, direct.archive_settings)


def make_offpath_granian(model: ModelUnderTest, cores: int) -> FrontDoorAdapter:
    """The same archive with nginx before Granian."""
    return replace(
        make_offpath(model, cores),
        name="offpath-granian",
        server="granian",
        needs=why_no_granian,
    )
