"""Request bodies, made of the photographs before any load runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from offpath.handler.config import HandlerConfig
from offpath.profiling.load.call import NPY, Call
from offpath.profiling.load.workload import Workload
from offpath.serving.client import make_npy


class Bodies:
    """Writes each form of each workload once, as files in a folder of its own."""

    def __init__(self, folder: Path, config: HandlerConfig) -> None:
        """`config` has the sizes that thin clients resize to."""
        self._folder, self._config = folder, config
        self._made: dict[tuple[str, str, Callable[[bytes], bytes] | None], tuple[Path, ...]] = {}

    def make(self, photograph: bytes, call: Call) -> bytes:
        content = photograph
        if call.content == NPY:
            content = make_npy(photograph, self._config.input_geometry)
        return call.wrap(content) if call.wrap else content

    def paths(self, workload: Workload, call: Call) -> tuple[Path, ...]:
        """Returns the bodies as files, in order; for a plain call these are the photographs."""
        if call.content != NPY and call.wrap is None:
            return workload.paths
        key = (workload.name, call.content, call.wrap)
        if key not in self._made:
            self._made[key] = self._write(workload, call)
        return self._made[key]

    def _write(self, workload: Workload, call: Call) -> tuple[Path, ...]:
        folder = self._folder / f"bodies-{len(self._made)}"
        folder.mkdir(parents=True)
        paths = []
        for index, photograph in enumerate(workload.read()):
            path = folder / f"{index:05}"
            path.write_bytes(self.make(photograph, call))
            paths.append(path)
        return tuple(paths)
