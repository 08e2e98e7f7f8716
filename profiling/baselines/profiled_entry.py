"""Entry of an archive whose handler is profiled with cProfile inside TorchServe's worker.

`experiments/profiled_server.py` puts this file into a copy of any archive, with the two modules of
ours that it imports. The entry loads the archive's own handler by TorchServe's rules and passes
every call on. It records while $OFFPATH_PROFILE_DIR has the file `start` but not yet `stop`, and
then writes `<pid>.prof`. Control files are needed because a worker is always killed, so it cannot
write at its end. Before `start`, a batch costs one more `if`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ts.model_loader import TsModelLoader

from offpath.profiling.profilers import call_profiler, worker_threads

ENTRY_SETTINGS = "profiled_handler.json"
FOLDER_VARIABLE = "OFFPATH_PROFILE_DIR"
POLL_S = 0.1


class ProfiledHandler:
    """A handler that stands in front of the archive's own handler."""

    def initialize(self, context: Any) -> None:
        """Loads the archive's handler and starts waiting for the control files."""
        folder = Path(os.environ[FOLDER_VARIABLE])
        self._model_dir: str = context.system_properties["model_dir"]
        settings = Path(self._model_dir, ENTRY_SETTINGS)
        handler = json.loads(settings.read_text())["handler"]
        self._recording = False
        # Held while a batch runs, so that profiles contain whole batches.
        self._batch = threading.Lock()
        self._profiler = call_profiler.CallProfiler()
        self._entry, initialize = load_entry(handler)
        initialize(context)
        threading.Thread(target=self._obey, args=(folder,), daemon=True).start()

    def handle(self, data: Any, context: Any) -> Any:
        """Handles one batch, which is profiled while recording."""
        if not self._recording:
            return self._entry(data, context)
        with self._batch, self._profiler.watching():
            return self._entry(data, context)

    def _obey(self, folder: Path) -> None:
        """Waits for `start`, then for `stop`, then writes the profile."""
        wait_for(folder / "start")
        with worker_threads.watching_threads(self._profiler.watching):
            self._recording = True
            wait_for(folder / "stop")
            self._recording = False
            with self._batch:
                write_profile(self._profiler, folder, self._model_dir)


def load_entry(handler: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns handle and initialize of a manifest's handler, found as ts/model_loader.py does."""
    loader = TsModelLoader()
    function: str | None = None
    try:
        module, function = loader._load_handler_file(handler)
    except ImportError:
        module = loader._load_default_handler(handler)
    if hasattr(module, function or "handle"):
        found = loader._get_function_entry_point(module, function or "handle")
    else:
        found = loader._get_class_entry_point(module)
    entry, initialize = found
    return entry, initialize


def wait_for(path: Path) -> None:
    """Waits until the file exists."""
    while not path.exists():
        time.sleep(POLL_S)


def write_profile(profiler: Any, folder: Path, model_dir: str) -> None:
    """Writes `<pid>.prof` as a whole, then `<pid>.done` with the path of the model's folder.

    A worker without a batch writes only the latter, because pstats reads no empty file.
    """
    partial = folder / f"{os.getpid()}.partial"
    stats = profiler.merge()
    if call_profiler.read_stats(stats):
        stats.dump_stats(partial)
        os.replace(partial, folder / f"{os.getpid()}.prof")
    partial.write_text(model_dir)
    os.replace(partial, folder / f"{os.getpid()}.done")
