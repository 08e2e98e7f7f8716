"""What the experiments on servers share: they differ in their subjects, cells, tables and charts.

A subject is a variant that can be started, and what is started measures its cells: a server under
load (`server_subject.py`), a limit of the cores (`limit_subject.py`), a lone client (`latency.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.experiment import Observer, Turn, Variant
from offpath.profiling.core.run import Cell, Figures, Run
from offpath.profiling.core.runner import Runner, Schedule
from offpath.profiling.load.answers import make_checks
from offpath.profiling.load.bodies import Bodies
from offpath.profiling.load.model_under_test import Answer, ModelUnderTest
from offpath.profiling.load.plan import LoadPlan, find_generator
from offpath.profiling.load.target import ServerUnderTest
from offpath.profiling.load.workload import Workload

# Load before a window of a server that has had its warm-up on these photographs.
TURN_WARM_UP_S = 2.0
# Of a start with the check of the answers, for the estimate.
START_S = 10.0


@dataclass(frozen=True)
class Windows:
    """The load of each window; see `profiling.load.plan.LoadPlan`."""

    seconds: float | None
    warm_up_s: float
    requests: int | None = None
    rate: float | None = None
    min_replies: int = 0
    seed: int = 0
    generator: str = "locust"


class Target(Protocol):
    """Something that was started."""

    def measure(self, cell: Cell, turn: Turn) -> Figures:
        """See `Experiment.measure`."""


class Subject(Protocol):
    """A variant and how it is started."""

    @property
    def variant(self) -> Variant:
        """Its name and facts."""

    def prepare(self, folder: Path) -> None:
        """See `Experiment.prepare`."""

    def opened(self, turn: Turn) -> AbstractContextManager[tuple[Target, Figures]]:
        """See `Experiment.opened`."""


class OnServers:
    """An `Experiment` made of subjects."""

    def __init__(
        self, name: str, subjects: Sequence[Subject], cells: Sequence[Cell]
    ) -> None:
        self.name, self.cells = name, cells
        self._subjects = {subject.variant.name: subject for subject in subjects}
        self.variants: Sequence[Variant] = [subject.variant for subject in subjects]

    def prepare(self, variant: Variant, folder: Path) -> None:
        """See `Experiment`."""
        self._subjects[variant.name].prepare(folder)

    def opened(self, turn: Turn) -> AbstractContextManager[tuple[Target, Figures]]:
        """See `Experiment`."""
        return self._subjects[turn.variant.name].opened(turn)

    def measure(self, target: Target, cell: Cell, turn: Turn) -> Figures:
        """See `Experiment`."""
        return target.measure(cell, turn)


class Bench:
    """What the servers of a run share: the model, photographs with answers, and the load.

    Args:
        folder: for bodies that are made of the photographs.
    """

    def __init__(
        self,
        model: ModelUnderTest,
        workloads: Sequence[Workload],
        windows: Windows,
        folder: Path,
    ) -> None:
        self.model, self.windows = model, windows
        self.workloads = {workload.name: workload for workload in workloads}
        self.generator = find_generator(windows.generator)
        self.generator.check(windows.seconds, windows.rate)
        self._bodies = Bodies(folder / "bodies", model.config)
        self._answers: dict[str, list[tuple[bytes, Answer]]] = {}

    def make_checks(
        self, server: ServerUnderTest, workload: str
    ) -> list[tuple[bytes, Answer]]:
        """The bodies to check a server with, and their reference answers."""
        if workload not in self._answers:
            photographs = self.workloads[workload].read()
            self._answers[workload] = make_checks(self.model, photographs)
        return [
            (self._bodies.make(photograph, server.call), answer)
            for photograph, answer in self._answers[workload]
        ]

    def make_plan(
        self, server: ServerUnderTest, url: str, cell: Cell, warm_up_s: float
    ) -> LoadPlan:
        """The load of one window."""
        load = asdict(self.windows) | {"warm_up_s": warm_up_s}
        del load["generator"]
        return LoadPlan(
            url=url,
            paths=self.paths(server, cell.workload),
            clients=cell.clients,
            headers=server.call.all_headers,
            **load,
        )

    def paths(self, server: ServerUnderTest, workload: str) -> tuple[Path, ...]:
        """The bodies that clients send, as files."""
        return self._bodies.paths(self.workloads[workload], server.call)


def find_runnable(
    servers: Sequence[ServerUnderTest], observer: Observer
) -> tuple[list[ServerUnderTest], dict[str, str]]:
    """The servers that can run here, and why the others cannot.

    Raises:
        ExpectedError: none can.
    """
    not_run = {}
    for server in servers:
        reason = server.why_not()
        if reason is not None:
            not_run[server.name] = reason
            observer.on_failure(server.name, reason)
    runnable = [server for server in servers if server.name not in not_run]
    if not runnable:
        raise ExpectedError(
            "none of the servers can run here: "
            + "; ".join(f"{name}: {reason}" for name, reason in not_run.items())
        )
    return runnable, not_run


def run_subjects(
    experiment: OnServers,
    run: Run,
    schedule: Schedule,
    observer: Observer,
    save: Callable[[Run], None],
    folder: Path,
) -> None:
    """Builds and measures all subjects; `run` has been filled with everything but its variants.

    Args:
        save: called with the run before anything is built (it may refuse to go on), and with what
            was measured so far after each cell.
    """
    run.variants.update({one.name: dict(one.facts) for one in experiment.variants})
    save(run)
    runner = Runner(experiment, run, schedule, observer, lambda: save(run))
    runner.prepare(folder)
    runner.run_rounds()
