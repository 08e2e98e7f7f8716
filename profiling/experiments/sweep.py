"""`bench sweep`: servers against the number of clients, as published comparisons do it.

Scenario KEEP: each server is started once and meets all steps in turn. Scenario RESTART: before
each step it is started afresh, and the servers take turns at each step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.runner import Runner, Schedule
from offpath.profiling.experiments.on_servers import (
    START_S,
    TURN_WARM_UP_S,
    Target,
    Windows,
    open_bench,
)
from offpath.profiling.experiments.server_subject import ServerSubject
from offpath.profiling.load.model_under_test import name_model

NAME = "sweep"
KEEP, RESTART = "keep", "restart"


@dataclass(frozen=True)
class SweepChoices:
    """What the user asked for; see `offpath bench sweep --help`."""

    scenario: str
    clients: tuple[int, ...]
    workload: str
    model: str
    servers: tuple[str, ...]
    batch_size: int
    windows: Windows
    rounds: int
    command: str

    @property
    def settings(self) -> dict[str, Any]:
        """What must be alike for rounds to be put together."""
        return {
            "model": name_model(self.model),
            "scenario": self.scenario,
            "clients": list(self.clients),
            "batch_size": self.batch_size,
            **asdict(self.windows),
        }

    @property
    def estimated_s(self) -> float:
        """How long the steps take together, roughly; builds come on top."""
        steps, once_s = len(self.clients), START_S + self.windows.warm_up_s
        all_s = steps * (self.windows.seconds or 0.0)
        if self.scenario == RESTART:
            all_s += steps * once_s
        else:
            all_s += once_s + (steps - 1) * TURN_WARM_UP_S
        return self.rounds * len(self.servers) * all_s


def run_sweep(
    choices: SweepChoices, observer: Observer, save: Callable[[Run], None]
) -> Run:
    """Runs it.

    Args:
        save: see `Bench`.

    Raises:
        ExpectedError: wrong choices, no server that can run.
    """
    run, is_kept = (
        Run(NAME, choices.command, choices.settings),
        choices.scenario == KEEP,
    )
    with open_bench(
        run, choices.model, (choices.workload,), choices.windows, observer, save
    ) as bench:
        servers = bench.find_servers(choices.servers)
        for server in servers:
            server.batch_size = choices.batch_size
        subjects = [
            ServerSubject(server.name, server, bench, measures_start=is_kept)
            for server in servers
        ]
        cells = [Cell(choices.workload, clients) for clients in choices.clients]
        steps = [(n, cell) for n in range(choices.rounds) for cell in cells]

        def take_restarted_turns(runner: Runner[Target]) -> None:
            with ExitStack() as stack:
                for round_, cell in steps:
                    for subject in subjects:
                        step = replace(subject.variant, cells=(cell,))
                        if not run.has_failed(step.name):
                            runner.take_turn(round_, step, stack)

        drive = Runner.run_rounds if is_kept else take_restarted_turns
        bench.measure(subjects, cells, Schedule(choices.rounds), drive)
    return run
