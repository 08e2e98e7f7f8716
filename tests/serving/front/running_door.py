"""A real door, in this process, before a server with set answers instead of TorchServe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.nginx import find_nginx
from offpath.serving.front.upstreams import Upstreams
from offpath.serving.process.ports import resolve_ports
from tests.support.answering_server import Answers, answering_server


@contextmanager
def door_before_answers(
    folder: Path,
    room_bytes: int | None = None,
    upstreams: Mapping[str, Any] = {},
    version: tuple[int, ...] | None = None,
    **settings: Any,
) -> Iterator[tuple[Door, Answers]]:
    """Runs a door until the end of the block.

    Args:
        folder: folder of its logs.
        room_bytes: memory for bodies, by default what there is.
        upstreams: of `Upstreams`.
        version: nginx's, if it is to be taken for another one.
        settings: of `DoorSettings`.
    """
    port, metrics = resolve_ports("127.0.0.1", [0, 0])
    made = DoorSettings(port=port, metrics_port=metrics, **settings)
    nginx = find_nginx()
    nginx = replace(nginx, version=version or nginx.version)
    door = Door(made, replace(Upstreams(False, 32 << 20, 240, 50), **upstreams), nginx, folder)
    if room_bytes is not None:
        door.place = replace(door.place, room_bytes=room_bytes)
    with answering_server(path=door.place.run / "inference.sock") as answers:
        try:
            door.start()
            door.set_ready(True)
            yield door, answers
        finally:
            door.stop()
