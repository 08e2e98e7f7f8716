"""`bench sweep`: servers against the number of clients, as published comparisons do it.

Scenario KEEP: each server is started once and meets all steps in turn. Scenario RESTART: before
each step it is started afresh, and the servers take turns at each step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.run import Run
from offpath.profiling.core.runner import Runner
from offpath.profiling.experiments.on_servers import (
    START_S,
    Choices,
    Target,
    open_bench,
)
from offpath.profiling.experiments.server_subject import ServerSubject
from offpath.profiling.load.target import BATCH_SIZE

NAME = "sweep"
KEEP, RESTART = "keep", "restart"


@dataclass(frozen=True)
class SweepChoices(Choices):
    """See `offpath bench sweep --help`."""

    scenario: str = KEEP
    batch_size: int = BATCH_SIZE

    @property
    def settings(self) -> dict[str, Any]:
        """See `Choices`."""
        own = {"scenario": self.scenario, "batch_size": self.batch_size}
        return {**super().settings, **own}

    @property
    def estimated_s(self) -> float:
        """See `Choices`."""
        if self.scenario == KEEP:
            return super().estimated_s
        step_s = START_S + self.windows.warm_up_s + (self.windows.seconds or 0.0)
        return self.rounds * len(self.servers) * len(self.cells) * step_s


def run_sweep(
    choices: SweepChoices, observer: Observer, save: Callable[[Run], None]
) -> Run:
    """Runs it; arguments and errors: see `open_bench` and `Bench.find_servers`."""
    is_kept = choices.scenario == KEEP
    with open_bench(NAME, choices, observer, save) as bench:
        servers = bench.find_servers()
        for server in servers:
            server.batch_size = choices.batch_size
        subjects = [
            ServerSubject(server.name, server, bench, measures_start=is_kept)
            for server in servers
        ]
        steps = [(n, cell) for n in range(choices.rounds) for cell in choices.cells]

        def take_restarted_turns(runner: Runner[Target]) -> None:
            with ExitStack() as stack:
                for round_, cell in steps:
                    for subject in subjects:
                        step = replace(subject.variant, cells=(cell,))
                        if not bench.run.has_failed(step.name):
                            runner.take_turn(round_, step, stack)

        drive = Runner.run_rounds if is_kept else take_restarted_turns
        return bench.measure(subjects, drive)
