"""Geometry of the pages' line charts, scatters and histograms; `templates/chart.html` draws it.

A chart is drawn for 440 units of width, so that its letters stay readable on a phone and grow on a
desktop. Colours are CSS classes of the page (`s0`, `s1`, ...), never values: dark mode has its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

WIDTH = 440
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 22, 34
# Of the axis' letters: ticks nearer than this would overlap.
LETTER_WIDTH = 7.0
COLOURS = 8
MARKERS = ("circle", "square", "triangle", "diamond")

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A named line; its points are (x, y) and are drawn in their order."""

    name: str
    points: Sequence[Point]
    strong: bool = False


@dataclass(frozen=True)
class Dot:
    """One point of a scatter; `label` is shown when it is pointed at."""

    x: float
    y: float
    label: str
    strong: bool = False


@dataclass(frozen=True)
class Axis:
    """Maps values to chart units.

    Attributes:
        low, high: values at the two ends.
        start, end: chart units of the two ends.
        log: logarithmic; low must be above 0.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Chart units of a value."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = (
                math.log(low),
                math.log(high),
                math.log(max(value, self.low)),
            )
        return round(
            self.start + (self.end - self.start) * (at - low) / (high - low), 1
        )


@dataclass
class Chart:
    """What the template draws, all in chart units.

    Attributes:
        x_ticks, y_ticks: (place, text).
        lines: (css class, "x,y x,y ...", css class of its width).
        markers: (css class, shape, x, y, text when pointed at).
        bars: (css class, x, y, width, height, text when pointed at).
        marks: (x, text): dashed vertical lines.
        rules: (y, text): dashed horizontal lines.
        numbers: (x, y, text) beside markers.
        legend: (css class, shape, name).
    """

    height: int
    x_label: str
    y_label: str
    title: str
    x_ticks: list[tuple[float, str]] = field(default_factory=list)
    y_ticks: list[tuple[float, str]] = field(default_factory=list)
    lines: list[tuple[str, str, str]] = field(default_factory=list)
    markers: list[tuple[str, str, float, float, str]] = field(default_factory=list)
    bars: list[tuple[str, float, float, float, float, str]] = field(
        default_factory=list
    )
    marks: list[tuple[float, str]] = field(default_factory=list)
    rules: list[tuple[float, str]] = field(default_factory=list)
    numbers: list[tuple[float, float, str]] = field(default_factory=list)
    legend: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def width(self) -> int:
        return WIDTH

    @property
    def left(self) -> int:
        return LEFT

    @property
    def right(self) -> int:
        return WIDTH - RIGHT

    @property
    def top(self) -> int:
        return TOP

    @property
    def bottom(self) -> int:
        return self.height - BOTTOM


def make_axis(values: Sequence[float], start: float, end: float, log: bool) -> Axis:
    """An axis that holds all values: from 0 when linear, a little wider when logarithmic."""
    finite = [value for value in values if math.isfinite(value)]
    if log:
        positive = [value for value in finite if value > 0] or [1.0]
        return Axis(min(positive) / 1.15, max(positive) * 1.15, start, end, log=True)
    high = max([*finite, 0.0]) or 1.0
    step = nice_step(high / 4)
    return Axis(0.0, step * math.ceil(high / step - 1e-9), start, end)


def nice_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least this large."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(
        power * factor
        for factor in (1, 2, 5, 10)
        if power * factor >= least * (1 - 1e-9)
    )


def list_ticks(axis: Axis) -> list[float]:
    """Round values on the axis."""
    if not axis.log:
        step = nice_step((axis.high - axis.low) / 4)
        return [
            axis.low + step * n for n in range(round((axis.high - axis.low) / step) + 1)
        ]
    first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
    factors = (1, 2, 5) if last - first <= 3 else (1,)
    ticks = [
        factor * 10.0**power for power in range(first, last + 1) for factor in factors
    ]
    return [tick for tick in ticks if axis.low <= tick <= axis.high]


def format_tick(value: float) -> str:
    """A tick without needless digits: 0.5, 20, 1,500, 20k."""
    if abs(value) >= 1e4:
        return f"{value / 1e3:,g}k"
    return f"{value:,.10g}"


def place_x_ticks(axis: Axis, values: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks whose texts do not touch each other or the chart's edge."""
    placed: list[tuple[float, str]] = []
    free_from = 0.0
    for value in values:
        place, text = axis.place(value), format_tick(value)
        half = len(text) * LETTER_WIDTH / 2
        if place - half >= free_from and place + half <= WIDTH:
            placed.append((place, text))
            free_from = place + half + LETTER_WIDTH
    return placed


def place_y_ticks(axis: Axis) -> list[tuple[float, str]]:
    """Ticks of the vertical axis."""
    return [(axis.place(value), format_tick(value)) for value in list_ticks(axis)]


def new_chart(
    x: Axis,
    y: Axis,
    x_values: Sequence[float],
    labels: tuple[str, str, str],
    height: int,
) -> Chart:
    """An empty chart with its ticks; `labels` are x label, y label and title."""
    chart = Chart(height, *labels)
    chart.x_ticks, chart.y_ticks = place_x_ticks(x, x_values), place_y_ticks(y)
    return chart


def x_axis(values: Sequence[float], log: bool) -> Axis:
    """The horizontal axis over the chart's width."""
    return make_axis(values, LEFT, WIDTH - RIGHT, log)


def y_axis(values: Sequence[float], log: bool, height: int) -> Axis:
    """The vertical axis over the chart's height; it grows upwards."""
    return make_axis(values, height - BOTTOM, TOP, log)
