"""`bench compare`: servers side by side on the same photographs, beside the limits of the cores.

Variants of the experiment are the servers and the limits; cells are workloads by clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from offpath.handler.process.host_limits import count_cores
from offpath.profiling.core.experiment import START, Observer, Runner, Schedule, Turn, Variant
from offpath.profiling.core.limits import CONTENT, DECODE, FORWARD
from offpath.profiling.core.run import Cell, Figures, Run
from offpath.profiling.core.workplace import work_folder
from offpath.profiling.load.generators import find_generator
from offpath.profiling.load.limits import LimitMeter, Rate
from offpath.profiling.load.model_under_test import ExpectedReply, load_model, name_model
from offpath.profiling.load.parameters import Load
from offpath.profiling.load.reply_check import check_replies, make_checks
from offpath.profiling.load.window import RunningServer, WindowWatcher, measure_load
from offpath.profiling.load.workload import Bodies, load_workload
from offpath.profiling.servers.adapter import BATCH_SIZE, Adapter
from offpath.profiling.servers.registry import make_servers

NAME = "compare"
LIMIT_BATCH_SIZE = 8
LIMIT_SECONDS = 3.0
# Seconds of load before a window of a server that is already warm on these photographs.
TURN_WARM_UP_S = 2.0
# Estimated seconds of a start with the check of the replies.
START_S = 10.0
Measure = Callable[[Cell, Turn], Figures]


@dataclass(frozen=True)
class Choices:
    """The user's choices.

    Attributes:
        variants: servers with other settings, see `servers.overrides`.
        side_by_side: start each server once and keep all running.
        batch_size: largest batch of each server.
        workers: numbers of workers that each server runs with; empty for one per core.
    """

    workloads: tuple[str, ...]
    model: str
    servers: tuple[str, ...]
    clients: tuple[int, ...]
    load: Load
    rounds: int
    command: str
    variants: tuple[str, ...] = ()
    side_by_side: bool = False
    batch_size: int = BATCH_SIZE
    workers: tuple[int, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        return [Cell(workload, clients) for workload in self.workloads for clients in self.clients]

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "model": name_model(self.model),
            "clients": list(self.clients),
            **asdict(self.load),
            "side_by_side": self.side_by_side,
            "batch_size": self.batch_size,
            "limit_batch_size": LIMIT_BATCH_SIZE,
            "limit_seconds": LIMIT_SECONDS,
        }

    @property
    def estimated_s(self) -> float:
        """Rough length of all rounds; builds and slow servers take further time."""
        warm_up_s = self.load.warm_up_s
        again_s = min(warm_up_s, TURN_WARM_UP_S)
        turn_s = len(self.cells) * (again_s + self.load.seconds)
        first_s = START_S + turn_s + len(self.workloads) * (warm_up_s - again_s)
        next_s = turn_s if self.side_by_side else first_s
        servers = max(1, len(self.workers)) * (len(self.servers) + len(self.variants))
        limits_s = (len(self.workloads) + 1) * LIMIT_SECONDS * self.rounds
        return limits_s + servers * (first_s + (self.rounds - 1) * next_s)


class ServerExperiment:
    """An `Experiment` on servers; what is opened is the function that measures a cell.

    `save` is called with the run before anything is built (it may refuse to go on), and with what
    was measured so far after each cell. Everything that is built goes into `folder`.

    Raises:
        ExpectedError: no such generator, photographs, model or server.
    """

    def __init__(
        self,
        run: Run,
        choices: Choices,
        observer: Observer,
        save: Callable[[Run], None],
        folder: Path,
    ) -> None:
        self.name, self.run, self.choices = run.experiment, run, choices
        self._observer, self._save, self._folder = observer, save, folder
        self.generator = find_generator(choices.load.generator)
        self.generator.check(choices.load)
        self.model = load_model(choices.model)
        # Refused before photographs are made, which takes a minute.
        self.find_adapters()
        self.workloads = {name: load_workload(name, observer.on_step) for name in choices.workloads}
        run.workloads.update({name: it.facts for name, it in self.workloads.items()})
        self.cells: Sequence[Cell] = choices.cells
        self.variants: Sequence[Variant] = ()
        self._adapters: dict[str, Adapter] = {}
        self._limits: dict[str, Measure] = {}
        self._bodies = Bodies(folder / "bodies", self.model.config)
        self._checks: dict[str, list[tuple[bytes, ExpectedReply]]] = {}
        # By variant, since its last start: how far the replies on each workload are off.
        self._differences: dict[str, dict[str, float]] = {}

    def find_adapters(self, workers: int | None = None) -> list[Adapter]:
        """Returns the chosen servers and variants that can run here, by default a worker per core.

        Raises ExpectedError if none of them can run.
        """
        runnable, not_run = [], self.run.not_run
        count = workers or count_cores()
        names, variants = self.choices.servers, self.choices.variants
        batch_size = self.choices.batch_size
        for adapter in make_servers(names, self.model, count, variants, batch_size):
            reason = adapter.why_not()
            if reason is None:
                runnable.append(adapter)
            elif adapter.name not in not_run:
                not_run[adapter.name] = reason
                self._observer.on_failure(adapter.name, reason)
        if not runnable:
            reasons = "; ".join(f"{name}: {why}" for name, why in not_run.items())
            raise ExpectedError(f"none of the servers can run here: {reasons}")
        return runnable

    def add_server(self, adapter: Adapter, name: str, facts: Mapping[str, Any]) -> None:
        """Adds a server as a variant; `facts` come on top of the adapter's own settings."""
        own = {**adapter.settings, CONTENT: adapter.call.content}
        self.variants = [*self.variants, Variant(name, {**own, **facts})]
        self._adapters[name] = adapter

    def add_limit(self, name: str, cells: tuple[Cell, ...], measure: Measure) -> None:
        """Adds a limit of the cores as a variant; nothing has to be built or started for it."""
        limit = Variant(name, {}, cells, stays_open=True)
        self.variants = [*self.variants, limit]
        self._limits[name] = measure

    def take_rounds(self) -> Run:
        run, choices = self.run, self.choices
        run.variants.update({v.name: dict(v.facts) for v in self.variants})
        self._save(run)
        schedule = Schedule(choices.rounds, choices.side_by_side)
        runner: Runner[Measure] = Runner(
            self, run, schedule, self._observer, lambda: self._save(run)
        )
        runner.prepare(self._folder)
        runner.run_rounds()
        return run

    def prepare(self, variant: Variant, folder: Path) -> None:
        if variant.name in self._adapters:
            self._adapters[variant.name].prepare(folder)

    @contextmanager
    def opened(self, turn: Turn) -> Iterator[tuple[Measure, Figures]]:
        name = turn.variant.name
        if name in self._limits:
            yield self._limits[name], {}
            return
        adapter = self._adapters[name]
        checks = self._make_checks(adapter, next(iter(self.workloads)))
        begin_s = time.perf_counter()
        with adapter.running() as running:
            # A stand-in for S3 beside it was started first and does not count.
            begin_s = getattr(running, "began_s", None) or begin_s
            self._differences[name] = {}

            def measure(cell: Cell, turn: Turn) -> Figures:
                return self._measure_server(adapter, running, cell, turn)

            check_replies(adapter.name, running.predict_url, adapter.call, checks[:1])
            yield measure, {"ready_s": round(time.perf_counter() - begin_s, 2)}

    def measure(self, target: Measure, cell: Cell, turn: Turn) -> Figures:
        return target(cell, turn)

    def _measure_server(
        self, adapter: Adapter, running: RunningServer, cell: Cell, turn: Turn
    ) -> Figures:
        checked = self._differences[turn.variant.name]
        warm_up_s = self.choices.load.warm_up_s
        if cell.workload in checked:
            warm_up_s = min(warm_up_s, TURN_WARM_UP_S)
        else:
            checks = self._make_checks(adapter, cell.workload)
            checked[cell.workload] = check_replies(
                adapter.name, running.predict_url, adapter.call, checks
            )
        window = self.choices.load.for_window(
            running.predict_url,
            self._bodies.paths(self.workloads[cell.workload], adapter.call),
            cell.clients,
            headers=adapter.call.all_headers,
            warm_up_s=warm_up_s,
        )
        watcher = WindowWatcher(turn.variant.name, running, turn.observer)
        return {
            **measure_load(watcher, window, self.generator),
            "answer_difference": round(checked[cell.workload], 5),
        }

    def _make_checks(self, adapter: Adapter, workload: str) -> list[tuple[bytes, ExpectedReply]]:
        if workload not in self._checks:
            photographs = self.workloads[workload].read()
            self._checks[workload] = make_checks(self.model, photographs)
        return [
            (self._bodies.make(photograph, adapter.call), expected)
            for photograph, expected in self._checks[workload]
        ]


def run_compare(choices: Choices, observer: Observer, save: Callable[[Run], None]) -> Run:
    """Runs the comparison; see `ServerExperiment` for arguments and errors.

    What was built is kept where something failed.
    """
    run = Run(NAME, choices.command, choices.settings)
    meter = LimitMeter(choices.model, count_cores(), LIMIT_BATCH_SIZE, LIMIT_SECONDS)
    with meter, work_folder(lambda: bool(run.failures)) as folder:
        experiment = ServerExperiment(run, choices, observer, save, folder)
        teams = {count: experiment.find_adapters(count) for count in choices.workers or (None,)}
        add_limits(experiment, meter)
        for count, team in teams.items():
            for adapter in team:
                experiment.add_server(
                    adapter,
                    name_team(adapter.name, count, choices.workers),
                    {} if count is None else {"workers": count},
                )
        return experiment.take_rounds()


def name_team(server: str, count: int | None, counts: tuple[int, ...]) -> str:
    """Returns the variant's name: the server's, with its workers where their numbers differ."""
    words = "1 worker" if count == 1 else f"{count} workers"
    return server if len(counts) < 2 else f"{server}, {words}"


def add_limits(experiment: ServerExperiment, meter: LimitMeter) -> None:
    def measure(take: Callable[[Cell], Rate]) -> Measure:
        return lambda cell, _: describe_rate(take(cell), meter)

    def take_decode(cell: Cell) -> Rate:
        return meter.measure_decode(experiment.workloads[cell.workload].paths)

    workloads = tuple(Cell(workload) for workload in experiment.workloads)
    experiment.add_limit(DECODE, workloads, measure(take_decode))
    experiment.add_limit(FORWARD, (START,), measure(lambda _: meter.measure_forward()))


def describe_rate(rate: Rate, meter: LimitMeter) -> Figures:
    return {
        "images": rate.images,
        "elapsed_s": round(rate.elapsed_s, 4),
        "cpu_s.limit": round(rate.cpu_s, 3),
        "other_cores": round(max(0.0, meter.other_cores(rate)), 4),
    }
