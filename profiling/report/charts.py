"""The kinds of charts: each holds its figures as plain data and draws itself with matplotlib.

`declared.py` says how a report declares a chart, `pictures.py` makes files and inline SVG of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offpath.profiling.core.figures import format_figure
from offpath.profiling.report.axes import (
    WIDTH_IN,
    finish_plot,
    measure_labels_pt,
    measure_legend_in,
    name_bars,
    place_legend,
    scale_axis,
    shorten,
)
from offpath.profiling.report.style import (
    LIMIT,
    OTHERS,
    OURS,
    PALE_ON,
    PALETTE,
    SERIES,
    assign_colours,
)

Point = tuple[float, float]

MARKERS = ("o", "s", "^", "D", "v", "P")
BAR_HEIGHT_IN = 0.25
LINE_HEIGHT_IN = 2.2
HISTOGRAM_HEIGHT_IN = 1.5
HISTOGRAM_BINS = 48
HISTOGRAM_MARKS = (50, 95, 99)
# From this ratio of largest to smallest value on, a logarithmic axis shows more than a linear one.
LOG_SPAN = 8.0
# Estimated width of a letter inside a bar.
LETTER_PT = 4.3


@dataclass(frozen=True)
class Chart(ABC):
    """One drawing with a title; the subclasses hold the figures."""

    title: str

    @property
    @abstractmethod
    def height_in(self) -> float:
        """Height of the drawing in inches."""

    @property
    def legend_in(self) -> float:
        """Height of the legend above the drawing in inches."""
        return 0.0

    @abstractmethod
    def draw(self, panel: Any) -> None:
        """Draws the chart into a matplotlib `Axes`."""


@dataclass(frozen=True)
class Bar:
    """One bar; `low` and `high` are its spread, `text` is the figure written beside it."""

    label: str
    value: float
    text: str
    is_strong: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class BarChart(Chart):
    """Horizontal bars with their figures beside them.

    Attributes:
        unit: text below the axis.
        limit: value and name of a dashed line through all bars.
    """

    unit: str
    bars: Sequence[Bar]
    limit: tuple[float, str] | None = None

    @property
    def height_in(self) -> float:
        return 0.75 + BAR_HEIGHT_IN * len(self.bars)

    def draw(self, panel: Any) -> None:
        bars = self.bars
        lows = [bar.value if bar.low is None else bar.low for bar in bars]
        highs = [bar.value if bar.high is None else bar.high for bar in bars]
        values = [bar.value for bar in bars]
        spread = [
            [max(0.0, value - low) for value, low in zip(values, lows)],
            [max(0.0, high - value) for value, high in zip(values, highs)],
        ]
        panel.barh(
            range(len(bars)),
            values,
            color=[PALETTE[OURS if bar.is_strong else OTHERS] for bar in bars],
            height=0.68,
            xerr=spread,
            error_kw={"ecolor": PALETTE["text"], "elinewidth": 0.9, "capsize": 1.5},
        )
        top = max([*highs, self.limit[0] if self.limit else 0.0]) or 1.0
        name_bars(panel, [bar.label for bar in bars], [bar.text for bar in bars], top)
        panel.set_xlabel(self.unit, loc="left")
        if self.limit:
            place, name = self.limit
            panel.axvline(place, color=PALETTE[LIMIT], linestyle="--", linewidth=1.1)
            panel.set_ylim(len(bars) + 0.05, -0.6)
            # The name is on the side of the line that has room.
            side, text = ("left", f" {name}") if place < top / 2 else ("right", f"{name} ")
            panel.text(place, len(bars) - 0.05, text, color=PALETTE[LIMIT], ha=side)


@dataclass(frozen=True)
class StackedBar:
    """One bar of named parts in their order; `text` is the figure of their sum."""

    label: str
    parts: Sequence[tuple[str, float]]
    text: str


@dataclass(frozen=True)
class StackedChart(Chart):
    """Bars of coloured parts on one scale; with `is_share` each bar fills the width."""

    unit: str
    bars: Sequence[StackedBar]
    is_share: bool = False

    @property
    def height_in(self) -> float:
        return 0.6 + BAR_HEIGHT_IN * len(self.bars) + self.legend_in

    @property
    def legend_in(self) -> float:
        return measure_legend_in(self._parts)

    @property
    def _parts(self) -> list[str]:
        return list(dict.fromkeys(part for bar in self.bars for part, _ in bar.parts))

    @property
    def _left_pt(self) -> float:
        return measure_labels_pt([bar.label for bar in self.bars])

    def draw(self, panel: Any) -> None:
        sums = [sum(max(v, 0.0) for _, v in bar.parts) or 1.0 for bar in self.bars]
        colours = assign_colours(self._parts)
        top = 1.0 if self.is_share else max(sums, default=1.0)
        texts = [bar.text for bar in self.bars]
        width_pt = 72 * WIDTH_IN - self._left_pt - measure_labels_pt(texts)
        letter = top * LETTER_PT / max(width_pt, 1.0)
        named = set()
        for index, (bar, whole) in enumerate(zip(self.bars, sums)):
            end = 0.0
            for part, value in bar.parts:
                width = max(value, 0.0) / (whole if self.is_share else 1)
                label = "" if part in named else shorten(part)
                panel.barh(index, width, left=end, color=colours[part], label=label)
                named.add(part)
                if letter * (len(part) + 1) < width:
                    ink = PALETTE["on-s0" if colours[part] in PALE_ON else "on"]
                    style = {"ha": "center", "va": "center", "fontsize": 7}
                    panel.text(end + width / 2, index, part, color=ink, **style)
                end += width
        name_bars(panel, [bar.label for bar in self.bars], texts, top)
        panel.set_xlabel(self.unit, loc="left")
        place_legend(panel, self._left_pt)


@dataclass(frozen=True)
class Series:
    """A named line through (x, y) points, drawn in their order."""

    name: str
    points: Sequence[Point]
    is_strong: bool = False


@dataclass(frozen=True)
class LineChart(Chart):
    """Lines with markers; a few x values become the ticks of a logarithmic axis.

    Attributes:
        bound: y value and name of a dashed horizontal line.
    """

    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    bound: tuple[float, str] | None = None

    @property
    def height_in(self) -> float:
        return LINE_HEIGHT_IN + self.legend_in

    @property
    def legend_in(self) -> float:
        names = [series.name for series in self.series]
        return measure_legend_in(names) if len(names) > 1 else 0.0

    def draw(self, panel: Any) -> None:
        for index, series in enumerate(self.series):
            points = [point for point in series.points if self._has_place(point)]
            panel.plot(
                [x for x, _ in points],
                [y for _, y in points],
                color=PALETTE[SERIES[index % len(SERIES)]],
                marker=MARKERS[index % len(MARKERS)],
                markersize=3,
                linewidth=2.2 if series.is_strong else 1.2,
                linestyle="--" if index >= len(SERIES) else "-",
                label=shorten(series.name),
                zorder=3 if series.is_strong else 2,
            )
        xs = sorted({x for series in self.series for x, _ in series.points})
        scale_axis(panel, "x", self.log_x, xs)
        scale_axis(panel, "y", self.log_y, ())
        finish_plot(panel, self.x_label, self.y_label, self.bound)
        if len(self.series) > 1:
            place_legend(panel)

    def _has_place(self, point: Point) -> bool:
        """Tells whether a point can be drawn: finite, and above 0 on a logarithmic axis."""
        x, y = point
        finite = math.isfinite(x) and math.isfinite(y)
        return finite and (x > 0 or not self.log_x) and (y > 0 or not self.log_y)


@dataclass(frozen=True)
class Histogram(Chart):
    """Counts of values in bins; p50, p95 and p99 are dashed lines."""

    x_label: str
    values: Sequence[float]

    @property
    def height_in(self) -> float:
        return HISTOGRAM_HEIGHT_IN

    def draw(self, panel: Any) -> None:
        import numpy as np

        values = np.asarray(self.values)
        low, high = values.min(), values.max()
        is_log = low > 0 and high / low > LOG_SPAN
        space = np.geomspace if is_log else np.linspace
        bins = space(low, max(high, low + 1e-9), HISTOGRAM_BINS)
        panel.hist(values, bins=bins, color=PALETTE[OURS])
        if is_log:
            scale_axis(panel, "x", True, ())
        marks = {percent: np.percentile(values, percent) for percent in HISTOGRAM_MARKS}
        for place in marks.values():
            panel.axvline(place, color=PALETTE["text"], linestyle="--", linewidth=0.8)
        figures = ", ".join(f"p{p} {format_figure(v)}" for p, v in marks.items())
        panel.set_xlabel(f"{self.x_label}; {figures}", loc="left")
        panel.grid(axis="y")
