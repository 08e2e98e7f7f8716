"""`bench compare`: servers side by side on the same photographs, beside the limits of the cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.host import count_cores
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.runner import START, Schedule
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
    Subject,
    Windows,
    open_bench,
)
from offpath.profiling.experiments.server_subject import PROBE_START, ServerSubject
from offpath.profiling.load.limits import LimitMeter
from offpath.profiling.load.model_under_test import name_model

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
        save: see `Bench`.

    Raises:
        ExpectedError: wrong choices, no server that can run.
    """
    run = Run(NAME, choices.command, choices.settings)
    meter = LimitMeter(choices.model, count_cores(), LIMIT_BATCH_SIZE, LIMIT_SECONDS)
    with meter, open_bench(
        run, choices.model, choices.workloads, choices.windows, observer, save
    ) as bench:
        servers = list_servers(choices, bench)
        limits: list[Subject] = []
        if choices.cells:
            limits += list_limits(meter, bench, [one.server for one in servers])
        schedule = Schedule(choices.rounds, choices.side_by_side, choices.tries)
        bench.measure([*limits, *servers], choices.cells, schedule)
    return run


def list_servers(choices: CompareChoices, bench: Bench) -> list[ServerSubject]:
    """The servers, with each number of workers that was asked for."""
    probe = (START,) if PROBE_START in choices.probes else ()
    return [
        ServerSubject(
            name_team(server.name, count, choices.workers),
            server,
            bench,
            {} if count is None else {SERVER: server.name, "workers": count},
            choices.probes,
            (*choices.cells, *probe),
        )
        for count in choices.workers or (None,)
        for server in bench.find_servers(choices.servers, choices.variants, count)
    ]


def name_team(server: str, count: int | None, counts: tuple[int, ...]) -> str:
    """The variant of a server with so many workers; its own name where there is one number."""
    return server if len(counts) < 2 else f"{server}, {count} workers"
