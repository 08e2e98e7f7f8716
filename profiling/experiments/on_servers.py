"""What the experiments on servers share: they differ in their subjects, cells, tables and charts.

A subject is a variant that can be started, and what is started measures its cells: a server under
load (`server_subject.py`), a limit of the cores (`limit_subject.py`), a lone client (`latency.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from offpath.handler.errors import ExpectedError
from offpath.handler.process.host_limits import count_cores
from offpath.profiling.core.experiment import Observer, Turn, Variant
from offpath.profiling.core.run import Cell, Figures, Run
from offpath.profiling.core.runner import Runner, Schedule
from offpath.profiling.core.work_folder import work_folder
from offpath.profiling.load.answers import make_checks
from offpath.profiling.load.bodies import Bodies
from offpath.profiling.load.model_under_test import Answer, load_model, name_model
from offpath.profiling.load.plan import LoadPlan, find_generator
from offpath.profiling.load.target import ServerUnderTest
from offpath.profiling.load.workload import load_workload
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


@dataclass(frozen=True)
class Choices:
    """What the user asked for; each command adds its own.

    Attributes:
        variants: servers with other settings, see `servers.overrides`.
    """

    workloads: tuple[str, ...]
    model: str
    servers: tuple[str, ...]
    clients: tuple[int, ...]
    windows: Windows
    rounds: int
    command: str
    variants: tuple[str, ...] = ()
    tries: int = 1
    side_by_side: bool = False

    @property
    def cells(self) -> list[Cell]:
        """Workloads by clients."""
        return [
            Cell(workload, clients)
            for workload in self.workloads
            for clients in self.clients
        ]

    @property
    def settings(self) -> dict[str, Any]:
        """What must be alike for rounds to be put together."""
        return {
            "model": name_model(self.model),
            "clients": list(self.clients),
            **asdict(self.windows),
            "side_by_side": self.side_by_side,
        }

    @property
    def schedule(self) -> Schedule:
        """How often and in what order."""
        return Schedule(self.rounds, self.side_by_side, self.tries)

    @property
    def estimated_s(self) -> float:
        """How long the rounds take together, roughly; builds and slow servers come on top."""
        warm_up_s = self.windows.warm_up_s
        again_s = min(warm_up_s, TURN_WARM_UP_S)
        turn_s = len(self.cells) * (again_s + (self.windows.seconds or 0.0))
        first_s = START_S + turn_s + len(self.workloads) * (warm_up_s - again_s)
        next_s = turn_s if self.side_by_side else first_s
        servers = len(self.servers) + len(self.variants)
        return servers * (first_s + (self.rounds - 1) * next_s)


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
        save: called with the run before anything is built (it may refuse to go on), and with what
            was measured so far after each cell.
        folder: for everything that is built.
    """

    def __init__(
        self,
        run: Run,
        choices: Choices,
        observer: Observer,
        save: Callable[[Run], None],
        folder: Path,
    ) -> None:
        self.run, self.choices, self.folder = run, choices, folder
        self.observer, self._save = observer, save
        windows = choices.windows
        self.generator = find_generator(windows.generator)
        self.generator.check(windows.seconds, windows.rate)
        self.model = load_model(choices.model)
        # A wrong name is said before photographs are made, which takes a minute.
        make_servers(choices.servers, self.model, count_cores(), choices.variants)
        self.workloads = {
            name: load_workload(name, windows.seed, observer.on_step)
            for name in choices.workloads
        }
        run.workloads.update({name: it.facts for name, it in self.workloads.items()})
        self._bodies = Bodies(folder / "bodies", self.model.config)
        self._answers: dict[str, list[tuple[bytes, Answer]]] = {}

    def find_servers(self, workers: int | None = None) -> list[ServerUnderTest]:
        """Those of the servers and variants of them that can run here; one worker a core.

        Raises:
            ExpectedError: an unknown name, or none can.
        """
        runnable, not_run = [], self.run.not_run
        count = workers or count_cores()
        names, variants = self.choices.servers, self.choices.variants
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
        drive: Callable[[Runner[Target]], None] = Runner.run_rounds,
    ) -> Run:
        """Builds and measures all subjects; `drive` takes the turns."""
        run, observer = self.run, self.observer
        experiment = OnServers(run.experiment, subjects, self.choices.cells)
        run.variants.update({v.name: dict(v.facts) for v in experiment.variants})
        self._save(run)
        schedule = self.choices.schedule
        runner = Runner(experiment, run, schedule, observer, lambda: self._save(run))
        runner.prepare(self.folder)
        drive(runner)
        return run

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
        load = asdict(self.choices.windows) | {"warm_up_s": warm_up_s}
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
    name: str, choices: Choices, observer: Observer, save: Callable[[Run], None]
) -> Iterator[Bench]:
    """A bench for a run of the experiment `name`; what it built stays where something failed.

    Args:
        save: see `Bench`.

    Raises:
        ExpectedError: no such generator, photographs or model.
    """
    run = Run(name, choices.command, choices.settings)
    with work_folder(lambda: bool(run.failures)) as folder:
        yield Bench(run, choices, observer, save, folder)
