"""A handler in a process of its own: the profiler's end of a pipe, and the program behind it.

A message is the name of a method of `DrivenHandler` with its arguments. The answer is what the
method returned, or an error. Whatever the handler prints goes to a log file, and the end of that
log is quoted when the process dies.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import offpath
from offpath.handler.errors import ExpectedError
from offpath.profiling.profilers.cprofile import CallCollector
from offpath.profiling.profilers.flame import FlameCollector
from offpath.profiling.profilers.handler_driver import (
    Collector,
    Driver,
    LoadedHandler,
    load_handler,
)
from offpath.profiling.profilers.handlers import HandlerSpec
from offpath.profiling.profilers.lines import LineCollector, choose_functions
from offpath.profiling.profilers.samples import BatchSample, make_shortener
from offpath.profiling.profilers.stages import (
    StageCollector,
    collect_stages,
    save_trace,
)

STAGES, CPROFILE, LINES, FLAME = "stages", "cprofile", "lines", "flame"
LOG_TAIL_CHARACTERS = 2000
# The folder that holds the package `offpath`.
ROOT = Path(offpath.__file__).parents[1]


@dataclass(frozen=True)
class Watch:
    """The way in which a handler is watched.

    Attributes:
        kind: STAGES, CPROFILE, LINES or FLAME.
        functions: for LINES, each as `module:qualified.name`. If empty, the handler's stages.
        interval_s: for FLAME, the time between two samples.
    """

    kind: str = STAGES
    functions: Sequence[str] = ()
    interval_s: float = 0.001


@dataclass(frozen=True)
class Raised:
    """An error in the handler's process, as text."""

    message: str


class HandlerProcess:
    """The profiler's end. The process ends with the `with` block.

    Args:
        name: the handler's name, for messages.
        environ: variables that are added to this process's own.
        log_file: file that receives what the handler prints.
    """

    def __init__(self, name: str, environ: Mapping[str, str], log_file: Path) -> None:
        self._name, self._environ, self._log_file = name, environ, log_file

    def __enter__(self) -> HandlerProcess:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs, open(self._log_file, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": path, **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                # Ctrl-C is for the parent, which then ends this process.
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def load(
        self,
        spec: HandlerSpec,
        images: Sequence[Path],
        warm_up: int,
        seed: int = 0,
        watch: Watch = Watch(),
        file: Path | None = None,
    ) -> None:
        """Loads the handler and warms it up with at least `warm_up` requests.

        Args:
            seed: decides the order of the images.
            file: the file that `finish` writes.

        Raises:
            ExpectedError: the handler cannot be loaded, raises, or refuses the images.
        """
        paths = [path.resolve() for path in images]
        batches = math.ceil(warm_up / spec.batch_size)
        self._ask("load", spec, paths, batches, seed, watch, file.resolve() if file else None)

    def run(self, batches: int) -> list[BatchSample]:
        """Handles further batches.

        Raises:
            ExpectedError: the handler raised, or the process died.
        """
        samples: list[BatchSample] = self._ask("run", batches)
        return samples

    def finish(self) -> Mapping[str, Any]:
        """Returns functions or lines by the name of their kind, and `refused`, a count."""
        found: Mapping[str, Any] = self._ask("finish")
        return found

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((method, arguments))
            answer = self._pipe.recv()
        except (OSError, EOFError):
            log = self._log_file.read_text(encoding="utf-8", errors="replace")
            raise ExpectedError(
                f"handler {self._name!r}: its process ended with {self._process.wait()};"
                f" the last it printed:\n{log[-LOG_TAIL_CHARACTERS:].rstrip()}"
            ) from None
        if isinstance(answer, Raised):
            raise ExpectedError(f"handler {self._name!r}: {answer.message}")
        return answer


class DrivenHandler:
    """The handler in its process, from loading to results."""

    def load(
        self,
        spec: HandlerSpec,
        images: Sequence[Path],
        warm_up_batches: int,
        seed: int,
        watch: Watch,
        file: Path | None,
    ) -> None:
        """Loads the handler and warms it up. Nothing is watched yet."""
        self._spec, self._file = spec, file
        self._doing = "initialize"
        handler = load_handler(spec)
        self._doing = "handle"
        bodies = [path.read_bytes() for path in images]
        self._driver = Driver(handler, bodies, spec.batch_size, seed)
        for _ in self._driver.run(warm_up_batches, Collector()):
            pass
        if self._driver.refused:
            raise ExpectedError(
                f"the handler refused {self._driver.refused} images of the warm-up;"
                " expected images that it can decode"
            )
        self._collector = make_collector(watch, handler, spec.name)

    def run(self, batches: int) -> list[BatchSample]:
        """Handles some batches."""
        return list(self._driver.run(batches, self._collector))

    def finish(self) -> dict[str, Any]:
        """Saves files and returns what the collector found."""
        if isinstance(self._collector, StageCollector) and self._file:
            save_trace(self._driver, self._collector, self._file)
        shorten = make_shortener(self._spec.folder)
        found = self._collector.finish(shorten, self._file)
        return {**found, "refused": self._driver.refused}

    def answer(self, method: str, arguments: Sequence[Any]) -> Any:
        """Calls a method; an error becomes `Raised`, with a traceback if it is the handler's."""
        try:
            return getattr(self, method)(*arguments)
        except ExpectedError as error:
            return Raised(str(error))
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            raised = f"raised in {self._doing}: {type(error).__name__}: {error}"
            return Raised(f"{raised}\n{trace[-LOG_TAIL_CHARACTERS:].rstrip()}")


def make_collector(watch: Watch, handler: LoadedHandler, name: str) -> Collector:
    """Returns the collector for a kind of profile."""
    if watch.kind == CPROFILE:
        return CallCollector()
    if watch.kind == LINES:
        return LineCollector(choose_functions(handler, watch.functions))
    if watch.kind == FLAME:
        return FlameCollector(watch.interval_s, f"{name}: handle")
    return collect_stages(handler)


def serve(pipe: Connection) -> None:
    """Answers messages until the profiler closes the pipe, then ends the process."""
    handler = DrivenHandler()
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            # Background threads of the handler (log shipping, an engine's pool) would delay exit.
            os._exit(0)
        pipe.send(handler.answer(method, arguments))


if __name__ == "__main__":
    # Imported by its own name: pickled messages name their classes by module.
    from offpath.profiling.profilers import handler_process

    handler_process.serve(Connection(int(sys.argv[1])))
