"""Statistics over a trade-off's windows; pure functions, computed when a result is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offpath.profiling.core.result import NOISY_CORES
from offpath.profiling.experiments.tradeoff_result import TradeoffResult
from offpath.profiling.experiments.tuning.choice import Summary, summarise


@dataclass(frozen=True)
class TradeoffFigure:
    """One value of a knob under so many clients; the other settings are the preset's.

    Attributes:
        is_preset: the value is the preset's own.
    """

    knob: str
    value: int
    clients: int
    summary: Summary
    is_preset: bool


def summarise_tradeoff(result: TradeoffResult) -> list[TradeoffFigure]:
    """All measured values, knob by knob, ascending."""
    return [
        figure
        for knob, values in result.knobs.items()
        for value in values
        for clients in list_clients(result)
        for figure in summarise_value(result, knob, value, clients)
    ]


def summarise_value(
    result: TradeoffResult, knob: str, value: int, clients: int
) -> list[TradeoffFigure]:
    """The figure of a value, or none where it was not measured."""
    preset = result.reference
    points = [
        point
        for point in result.points
        if point.clients == clients
        and getattr(point.candidate, knob) == value
        and (point.candidate == preset or is_turned(result, point.candidate, knob))
    ]
    if not points:
        return []
    summary = summarise(points[0].candidate, [point.window for point in points])
    return [
        TradeoffFigure(knob, value, clients, summary, value == getattr(preset, knob))
    ]


def is_turned(result: TradeoffResult, candidate: object, knob: str) -> bool:
    """Whether a candidate differs from the preset in this knob, and in no other."""
    return [
        name
        for name in result.knobs
        if getattr(candidate, name) != getattr(result.reference, name)
    ] == [knob]


def list_clients(result: TradeoffResult) -> list[int]:
    """Numbers of clients, ascending."""
    return sorted({point.clients for point in result.points})


def select_line(
    figures: Sequence[TradeoffFigure], knob: str, clients: int
) -> list[TradeoffFigure]:
    """One line of a chart."""
    return [f for f in figures if f.knob == knob and f.clients == clients]


def list_tradeoff_doubts(
    result: TradeoffResult, figures: Sequence[TradeoffFigure]
) -> list[str]:
    """What is missing and what makes the figures doubtful."""
    doubts = [f"{name} did not serve: {why}" for name, why in result.failures.items()]
    doubts += [
        f"{figure.summary.failures} replies were not 200: {figure.summary.candidate},"
        f" {figure.clients} clients"
        for figure in figures
        if figure.summary.failures
    ]
    other = [figure.summary.other_cores for figure in figures]
    if any(cores > NOISY_CORES for cores in other):
        doubts.append(
            f"noise: up to {max(other):.2f} cores were busy with something else; stop it and run"
            " again"
        )
    return doubts
