"""The physical limits of the cores as variants `limit:...` of a run; see `load/limits.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.experiment import Turn, Variant
from offpath.profiling.core.limits import DECODE, FORWARD, name_forward
from offpath.profiling.core.run import Cell, Figures
from offpath.profiling.core.runner import START
from offpath.profiling.experiments.on_servers import Bench
from offpath.profiling.load.limits import LimitMeter, Rate
from offpath.profiling.load.target import ServerUnderTest

LIMIT_BATCH_SIZE = 8
LIMIT_SECONDS = 3.0


@dataclass(frozen=True)
class LimitSubject:
    """One limit: its own target, nothing has to be started."""

    name: str
    meter: LimitMeter
    cells: tuple[Cell, ...]
    take: Callable[[Cell], Rate]

    @property
    def variant(self) -> Variant:
        """See `Subject`."""
        return Variant(self.name, {}, self.cells, stays_open=True)

    def prepare(self, folder: Path) -> None:
        """Nothing to build."""

    @contextmanager
    def opened(self, turn: Turn) -> Iterator[tuple[LimitSubject, Figures]]:
        """See `Subject`."""
        yield self, {}

    def measure(self, cell: Cell, turn: Turn) -> Figures:
        """Images that all cores together handle."""
        rate = self.take(cell)
        return {
            "images": rate.images,
            "elapsed_s": round(rate.elapsed_s, 4),
            "cpu_s.limit": round(rate.cpu_s, 3),
            "other_cores": round(max(0.0, self.meter.other_cores(rate)), 4),
        }


def list_limits(
    meter: LimitMeter, bench: Bench, servers: Sequence[ServerUnderTest]
) -> list[LimitSubject]:
    """Decoding each workload; the forward in eager fp32 and with each engine of the servers'."""

    def take_decode(cell: Cell) -> Rate:
        return meter.measure_decode(bench.workloads[cell.workload].paths)

    owners = {getattr(server, "engine", None): server for server in servers}
    owners.pop(None, None)
    workloads = tuple(Cell(workload) for workload in bench.workloads)
    return [
        LimitSubject(DECODE, meter, workloads, take_decode),
        LimitSubject(FORWARD, meter, (START,), lambda _: meter.measure_forward()),
        *(
            LimitSubject(
                name_forward(engine), meter, (START,), partial(take_own, meter, server)
            )
            for engine, server in owners.items()
        ),
    ]


def take_own(meter: LimitMeter, server: ServerUnderTest, _: Cell) -> Rate:
    """The forward of one of our archives.

    Raises:
        ExpectedError: the archive was not built.
    """
    own = getattr(server, "own_forward", None)
    if own is None:
        raise ExpectedError(f"server {server.name!r} was not built: no forward of it")
    return meter.measure_forward(own)
