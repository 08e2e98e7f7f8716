"""The profiler's end of a handler's process: what is asked of it, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from offpath.profiling.core.child_process import ChildProcess
from offpath.profiling.profilers.handlers import HandlerSpec
from offpath.profiling.profilers.samples import BatchSample

STAGES, CPROFILE, LINES, FLAME = "stages", "cprofile", "lines", "flame"


@dataclass(frozen=True)
class Watch:
    """How a handler is watched.

    Attributes:
        kind: STAGES, CPROFILE, LINES or FLAME.
        functions: for LINES: `module:qualified.name` each; none for the handler's stages.
        interval_s: for FLAME: between two samples.
    """

    kind: str = STAGES
    functions: Sequence[str] = ()
    interval_s: float = 0.001


class HandlerProcess(ChildProcess):
    """A context manager; the process is gone when the block ends, however it ends.

    Args:
        name: of the handler, for messages.
        environ: added to this process's own.
        log_file: takes what the handler prints.
    """

    def __init__(self, name: str, environ: Mapping[str, str], log_file: Path) -> None:
        super().__init__(
            "offpath.profiling.profilers.profile_child",
            f"handler {name!r}",
            environ,
            log_file,
        )

    def load(
        self,
        spec: HandlerSpec,
        pictures: Sequence[Path],
        warm_up: int,
        seed: int = 0,
        watch: Watch = Watch(),
        file: Path | None = None,
    ) -> None:
        """Loads the handler and warms it up with at least so many requests.

        Args:
            seed: of the pictures' order.
            file: what `finish` writes.

        Raises:
            ExpectedError: it cannot be loaded, raised, or refuses the pictures.
        """
        self.ask(
            "load",
            spec=asdict(spec),
            pictures=[str(path.resolve()) for path in pictures],
            warm_up_batches=math.ceil(warm_up / spec.batch_size),
            seed=seed,
            watch=asdict(watch),
            file=str(file.resolve()) if file else None,
        )

    def run(self, batches: int) -> list[BatchSample]:
        """Handles further batches.

        Raises:
            ExpectedError: it raised, or the process died.
        """
        return msgspec.convert(
            self.ask("run", batches=batches)["batches"], list[BatchSample]
        )

    def finish(self) -> Mapping[str, Any]:
        """Functions or lines by their kind's name, and how many requests were `refused`."""
        return self.ask("finish")
