"""`bench sweep`: servers against the number of clients, as published comparisons do it.

Scenario KEEP: each server is started once and meets all steps in turn. Scenario RESTART: before
each step it is started again, and the servers take turns at each step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.run import Run
from offpath.profiling.core.runner import Runner
from offpath.profiling.experiments.server_experiment import (
    START_S,
    Choices,
    Measure,
    open_experiment,
)

NAME = "sweep"
KEEP, RESTART = "keep", "restart"


@dataclass(frozen=True)
class SweepChoices(Choices):
    """The choices of `offpath bench sweep`."""

    scenario: str = KEEP

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "scenario": self.scenario}

    @property
    def estimated_s(self) -> float:
        if self.scenario == KEEP:
            return super().estimated_s
        step_s = START_S + self.load.warm_up_s + (self.load.seconds or 0.0)
        return self.rounds * len(self.servers) * len(self.cells) * step_s


def run_sweep(choices: SweepChoices, observer: Observer, save: Callable[[Run], None]) -> Run:
    """Runs the sweep; see `ServerExperiment` for arguments and errors."""
    is_kept = choices.scenario == KEEP
    with open_experiment(NAME, choices, observer, save, measures_start=is_kept) as experiment:
        for adapter in experiment.find_adapters():
            experiment.add_server(adapter)

        def take_restarted_turns(runner: Runner[Measure]) -> None:
            steps = [(n, cell) for n in range(choices.rounds) for cell in choices.cells]
            with ExitStack() as stack:
                for round_, cell in steps:
                    for variant in experiment.variants:
                        if not experiment.run.has_failed(variant.name):
                            step = replace(variant, cells=(cell,))
                            runner.take_turn(round_, step, stack)

        take_turns = Runner.run_rounds if is_kept else take_restarted_turns
        return experiment.take_rounds(take_turns)
