"""The archive's own handler in a process of its own, one thread, one picture at a time, no server.

What its decode, transform and forward take here, no server with the same cores can undercut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from offpath.profiling.experiments.light_result import ALONE, TOTAL, LoneWindow
from offpath.profiling.in_process.handler_process import HandlerProcess
from offpath.profiling.in_process.handlers import (
    HandlerChoice,
    Preparation,
    prepare_handler,
)


class AloneHandler:
    """A loaded and warm handler."""

    def __init__(self, process: HandlerProcess, workload: str) -> None:
        self._process, self._workload = process, workload

    def measure(self, round_: int, requests: int) -> LoneWindow:
        """Handles the next photographs, one after the other.

        Raises:
            ExpectedError: the handler raised, or its process died.
        """
        samples = self._process.run(requests)
        totals_ms = [round(1e3 * sample.total_s, 3) for sample in samples]
        stages = {name for sample in samples for name in sample.stages_s}
        return LoneWindow(
            round=round_,
            server=ALONE,
            workload=self._workload,
            elapsed_s=round(sum(totals_ms) / 1e3, 4),
            latencies_ms=totals_ms,
            stages_ms={
                name: [round(1e3 * s.stages_s.get(name, 0.0), 3) for s in samples]
                for name in sorted(stages)
            }
            | {TOTAL: totals_ms},
        )


@contextmanager
def run_alone(
    archive: Path, workload: str, pictures: Sequence[Path], requests: int, folder: Path
) -> Iterator[AloneHandler]:
    """Loads an archive's handler and warms it up with `requests` photographs.

    Args:
        folder: does not exist yet; for the unzipped archive and the handler's log.
    """
    common = Preparation(model="", batch_size=1, threads=1)
    choice = HandlerChoice(ALONE, str(archive), is_archive=True)
    spec = prepare_handler(choice, common, folder)
    with HandlerProcess(ALONE, spec.environ, folder / "handler.log") as process:
        process.load(spec, pictures, requests)
        yield AloneHandler(process, workload)
