"""`bench compare`: servers side by side on the same photographs, beside the limits of the cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from offpath.handler.process.host_limits import count_cores
from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.limits import DECODE, FORWARD
from offpath.profiling.core.run import Cell, Figures, Run
from offpath.profiling.core.runner import START
from offpath.profiling.experiments.server_experiment import (
    Choices,
    Measure,
    ServerExperiment,
    open_experiment,
)
from offpath.profiling.load.limits import LimitMeter, Rate

NAME = "compare"
LIMIT_BATCH_SIZE = 8
LIMIT_SECONDS = 3.0


@dataclass(frozen=True)
class CompareChoices(Choices):
    """The choices of `offpath bench compare`.

    Each server runs with each number of `workers`; without one, it has one worker per core.
    """

    workers: tuple[int, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        return {
            **super().settings,
            "limit_batch_size": LIMIT_BATCH_SIZE,
            "limit_seconds": LIMIT_SECONDS,
        }

    @property
    def estimated_s(self) -> float:
        limits_s = (len(self.workloads) + 1) * LIMIT_SECONDS * self.rounds
        return limits_s + max(1, len(self.workers)) * super().estimated_s


def run_compare(choices: CompareChoices, observer: Observer, save: Callable[[Run], None]) -> Run:
    """Runs the comparison; see `ServerExperiment` for arguments and errors."""
    meter = LimitMeter(choices.model, count_cores(), LIMIT_BATCH_SIZE, LIMIT_SECONDS)
    with meter, open_experiment(NAME, choices, observer, save) as experiment:
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
