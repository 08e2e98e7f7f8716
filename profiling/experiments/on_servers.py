"""What the experiments on servers share: they differ in their subjects, cells, tables and charts.

A subject is a variant that can be started, and what is started measures its cells: a server under
load (`server_subject.py`), a limit of the cores (`limit_subject.py`), a lone client (`latency.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.experiment import Observer, Turn, Variant
from offpath.profiling.core.host import count_cores
from offpath.profiling.core.run import Cell, Figures, Run
from offpath.profiling.core.runner import Runner, Schedule
from offpath.profiling.core.work_folder import work_folder
from offpath.profiling.load.answers import make_checks
from offpath.profiling.load.bodies import Bodies
from offpath.profiling.load.model_under_test import (
    Answer,
    ModelUnderTest,
    load_model,
)
from offpath.profiling.load.plan import LoadPlan, find_generator
from offpath.profiling.load.target import ServerUnderTest
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.servers.registry import make_servers

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
    """One run: its model, its photographs with answers, its load, and where it is kept.

    Args:
        run: has everything but workloads, variants and rows.
        save: called with the run before anything is built (it may refuse to go on), and with what
            was measured so far after each cell.
        folder: for everything that is built.
    """

    def __init__(
        self,
        run: Run,
        model: ModelUnderTest,
        workloads: Sequence[Workload],
        windows: Windows,
        observer: Observer,
        save: Callable[[Run], None],
        folder: Path,
    ) -> None:
        self.run, self.model, self.windows = run, model, windows
        self.observer, self._save, self.folder = observer, save, folder
        self.workloads = {workload.name: workload for workload in workloads}
        run.workloads.update({name: it.facts for name, it in self.workloads.items()})
        self.generator = find_generator(windows.generator)
        self.generator.check(windows.seconds, windows.rate)
        self._bodies = Bodies(folder / "bodies", model.config)
        self._answers: dict[str, list[tuple[bytes, Answer]]] = {}

    def find_servers(
        self,
        names: Sequence[str],
        variants: Sequence[str] = (),
        workers: int | None = None,
    ) -> list[ServerUnderTest]:
        """Those of the servers and variants of them that can run here; one worker a core.

        Raises:
            ExpectedError: an unknown name, or none can.
        """
        runnable, not_run = [], self.run.not_run
        count = workers or count_cores()
        for server in make_servers(names, self.model, count, variants):
            reason = server.why_not()
            if reason is None:
                runnable.append(server)
            elif server.name not in not_run:
                not_run[server.name] = reason
                self.observer.on_failure(server.name, reason)
        if not runnable:
            reasons = "; ".join(f"{name}: {why}" for name, why in not_run.items())
            raise ExpectedError(f"none of the servers can run here: {reasons}")
        return runnable

    def measure(
        self,
        subjects: Sequence[Subject],
        cells: Sequence[Cell],
        schedule: Schedule,
        drive: Callable[[Runner[Target]], None] = Runner.run_rounds,
    ) -> None:
        """Builds and measures all subjects; `drive` takes the turns."""
        experiment = OnServers(self.run.experiment, subjects, cells)
        self.run.variants.update({v.name: dict(v.facts) for v in experiment.variants})
        self._save(self.run)
        runner = Runner(
            experiment, self.run, schedule, self.observer, lambda: self._save(self.run)
        )
        runner.prepare(self.folder)
        drive(runner)

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


@contextmanager
def open_bench(
    run: Run,
    model: str,
    workloads: Sequence[str],
    windows: Windows,
    observer: Observer,
    save: Callable[[Run], None],
) -> Iterator[Bench]:
    """Loads model and photographs; what was built stays where something failed."""
    loaded = load_model(model)
    photographs = [
        load_workload(name, windows.seed, observer.on_step) for name in workloads
    ]
    with work_folder(lambda: bool(run.failures)) as folder:
        yield Bench(run, loaded, photographs, windows, observer, save, folder)
