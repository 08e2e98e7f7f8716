"""`bench compare`: servers side by side on the same photographs, beside the limits of the cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.host import count_cores
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.runner import START, Schedule
from offpath.profiling.core.work_folder import work_folder
from offpath.profiling.experiments.compare_report import SERVER
from offpath.profiling.experiments.limit_subject import (
    LIMIT_BATCH_SIZE,
    LIMIT_SECONDS,
    list_limits,
)
from offpath.profiling.experiments.on_servers import (
    START_S,
    TURN_WARM_UP_S,
    Bench,
    OnServers,
    Subject,
    Windows,
    find_runnable,
    run_subjects,
)
from offpath.profiling.experiments.server_subject import PROBE_START, ServerSubject
from offpath.profiling.load.limits import LimitMeter
from offpath.profiling.load.model_under_test import (
    ModelUnderTest,
    load_model,
    name_model,
)
from offpath.profiling.load.target import ServerUnderTest
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers.registry import make_servers

NAME = "compare"


@dataclass(frozen=True)
class CompareChoices:
    """What the user asked for; see `offpath bench compare --help`.

    Attributes:
        variants: servers with other settings, see `servers.overrides`.
        workers: each server with each of these; one a core where there are none.
    """

    workloads: tuple[str, ...]
    model: str
    servers: tuple[str, ...]
    clients: tuple[int, ...]
    windows: Windows
    rounds: int
    command: str
    tries: int = 1
    side_by_side: bool = False
    probes: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()
    variants: tuple[str, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """Workloads by clients; none where only starts are probed."""
        return [
            Cell(workload, clients)
            for workload in self.workloads
            for clients in self.clients
            if self.windows.seconds != 0
        ]

    @property
    def settings(self) -> dict[str, Any]:
        """What must be alike for rounds to be put together."""
        return {
            "model": name_model(self.model),
            "clients": list(self.clients),
            **asdict(self.windows),
            "side_by_side": self.side_by_side,
            "probes": list(self.probes),
            "limit_batch_size": LIMIT_BATCH_SIZE,
            "limit_seconds": LIMIT_SECONDS,
        }

    @property
    def estimated_s(self) -> float:
        """How long the rounds take together, roughly; builds and slow servers come on top."""
        windows, cells = self.windows, len(self.cells)
        warm_up_s = min(windows.warm_up_s, TURN_WARM_UP_S)
        turn_s = cells * (warm_up_s + (windows.seconds or 0.0))
        first_s = START_S + turn_s
        first_s += len(self.workloads) * (windows.warm_up_s - warm_up_s)
        next_s = turn_s if self.side_by_side else first_s
        servers = len(self.servers) + len(self.variants)
        servers *= max(1, len(self.workers))
        limits_s = (len(self.workloads) + 1) * LIMIT_SECONDS * self.rounds
        return limits_s + servers * (first_s + (self.rounds - 1) * next_s)


def run_compare(
    choices: CompareChoices, observer: Observer, save: Callable[[Run], None]
) -> Run:
    """Runs it.

    Args:
        save: see `run_subjects`.

    Raises:
        ExpectedError: wrong choices, no server that can run.
    """
    model = load_model(choices.model)
    workloads = [
        load_workload(name, choices.windows.seed, observer.on_step)
        for name in choices.workloads
    ]
    run = Run(
        NAME,
        choices.command,
        choices.settings,
        workloads={workload.name: workload.facts for workload in workloads},
    )
    meter = LimitMeter(choices.model, count_cores(), LIMIT_BATCH_SIZE, LIMIT_SECONDS)
    with work_folder(lambda: bool(run.failures)) as folder, meter:
        bench = Bench(model, workloads, choices.windows, folder)
        servers, run.not_run = list_servers(choices, model, bench, observer)
        limits: list[Subject] = []
        if choices.cells:
            limits += list_limits(meter, bench, [one.server for one in servers])
        experiment = OnServers(NAME, [*limits, *servers], choices.cells)
        schedule = Schedule(choices.rounds, choices.side_by_side, choices.tries)
        run_subjects(experiment, run, schedule, observer, save, folder)
    return run


def list_servers(
    choices: CompareChoices, model: ModelUnderTest, bench: Bench, observer: Observer
) -> tuple[list[ServerSubject], dict[str, str]]:
    """The servers with each number of workers, and why others cannot run here."""

    def make(workers: int) -> list[ServerUnderTest]:
        return make_servers(choices.servers, model, workers, choices.variants)

    runnable, not_run = find_runnable(make(count_cores()), observer)
    cells = choices.cells + ([START] if PROBE_START in choices.probes else [])
    common = ServerSubject("", runnable[0], bench, {}, choices.probes, tuple(cells))
    if not choices.workers:
        return [replace(common, name=s.name, server=s) for s in runnable], not_run
    return [
        replace(
            common,
            name=name_team(server.name, count, choices.workers),
            server=server,
            facts={SERVER: server.name, "workers": count},
        )
        for count in choices.workers
        for server in make(count)
        if server.name not in not_run
    ], not_run


def name_team(server: str, count: int, counts: tuple[int, ...]) -> str:
    """The variant of a server with so many workers; its own name where there is one number."""
    return server if len(counts) == 1 else f"{server}, {count} workers"
