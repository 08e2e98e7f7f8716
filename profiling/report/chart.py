"""Draws the charts of a document: matplotlib makes the picture, `svg.py` the files of it."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import singledispatch
from typing import Any

from offpath.handler.errors import MissingPackage
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.statistics import percentile
from offpath.profiling.report.axes import (
    LEGEND_COLUMNS,
    finish_plot,
    name_bars,
    place_legend,
    scale_axis,
    shorten,
    style_panel,
)
from offpath.profiling.report.document import (
    BarChart,
    Chart,
    Histogram,
    LineChart,
    ScatterChart,
    StackedChart,
    Waterfall,
)
from offpath.profiling.report.style import (
    LIMIT,
    OTHERS,
    OURS,
    PALE_ON,
    PALETTE,
    SERIES,
    STYLE,
    assign_colours,
)

# Width of a letter in a bar, of the drawing's.
LETTER = 0.0145


MARKERS = ("o", "s", "^", "D", "v", "P")


# A chart is 4.4 inches wide: its letters stay readable on a phone and grow on a desktop.
WIDTH_IN = 4.4


LINE_HEIGHT_IN = 2.5


HISTOGRAM_HEIGHT_IN = 1.5


BAR_HEIGHT_IN = 0.25


HISTOGRAM_BINS = 48


LEGEND_ROW_PT = 12.0
HISTOGRAM_MARKS = (50, 95, 99)


# From this span on a logarithmic axis shows more than a linear one.
LOG_SPAN = 8.0


def render(charts: Sequence[Chart], kind: str) -> bytes:
    """All charts in one figure; the same charts give the same bytes."""
    with plotting() as pyplot:
        heights = [height_of(chart) for chart in charts]
        figure, axes = pyplot.subplots(
            len(charts),
            1,
            figsize=(WIDTH_IN, sum(heights)),
            height_ratios=heights,
            squeeze=False,
        )
        for chart, panel in zip(charts, axes[:, 0]):
            style_panel(panel)
            draw(chart, panel)
            if len(charts) > 1 or kind == "png":
                panel.set_title(chart.title, pad=title_pad(panel))
        figure.set_layout_engine("constrained")
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(
            buffer, format=kind, transparent=kind == "svg", dpi=200, metadata=metadata
        )
        pyplot.close(figure)
    return buffer.getvalue()


def title_pad(panel: Any) -> float:
    """Points between a title and its drawing: the legend's rows stand there."""
    legend = panel.get_legend()
    rows = math.ceil(len(legend.get_texts()) / LEGEND_COLUMNS) if legend else 0
    return 4.0 + LEGEND_ROW_PT * rows


@contextmanager
def plotting() -> Iterator[Any]:
    """matplotlib without a window system, in our style.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackage("matplotlib", "bench") from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        yield pyplot


def height_of(chart: Chart) -> float:
    """Inches that a chart needs."""
    if isinstance(chart, BarChart):
        return 0.75 + BAR_HEIGHT_IN * len(chart.bars)
    if isinstance(chart, StackedChart):
        parts = {part for bar in chart.bars for part, _ in bar.parts}
        return 0.75 + BAR_HEIGHT_IN * len(chart.bars) + 0.16 * math.ceil(len(parts) / 4)
    if isinstance(chart, Waterfall):
        return 0.6 + 0.2 * len(chart.spans)
    return HISTOGRAM_HEIGHT_IN if isinstance(chart, Histogram) else LINE_HEIGHT_IN


@singledispatch
def draw(chart: object, panel: Any) -> None:
    """Draws one chart into a panel."""
    raise TypeError(f"no way to draw {type(chart).__name__}")


@draw.register
def _(chart: BarChart, panel: Any) -> None:
    bars = chart.bars
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
    top = max([*highs, chart.limit[0] if chart.limit else 0.0]) or 1.0
    name_bars(panel, [bar.label for bar in bars], [bar.text for bar in bars], top)
    panel.set_xlabel(chart.unit, loc="left")
    if chart.limit:
        place, name = chart.limit
        panel.axvline(place, color=PALETTE[LIMIT], linestyle="--", linewidth=1.1)
        panel.set_ylim(len(bars) + 0.05, -0.6)
        panel.text(
            place, len(bars) - 0.05, f"{name} ", color=PALETTE[LIMIT], ha="right"
        )


@draw.register
def _(chart: StackedChart, panel: Any) -> None:
    sums = [sum(max(v, 0.0) for _, v in bar.parts) or 1.0 for bar in chart.bars]
    colours = assign_colours(part for bar in chart.bars for part, _ in bar.parts)
    top = 1.0 if chart.is_share else max(sums, default=1.0)
    texts = [bar.text for bar in chart.bars]
    letter = LETTER * top * (1.05 + 0.024 * max(map(len, texts), default=0))
    named = set()
    for index, (bar, whole) in enumerate(zip(chart.bars, sums)):
        end = 0.0
        for part, value in bar.parts:
            width = max(value, 0.0) / (whole if chart.is_share else 1)
            label = "" if part in named else shorten(part)
            panel.barh(index, width, left=end, color=colours[part], label=label)
            named.add(part)
            if letter * (len(part) + 1) < width:
                ink = PALETTE["on-s0" if colours[part] in PALE_ON else "on"]
                where = {"ha": "center", "va": "center", "fontsize": 7, "color": ink}
                panel.text(end + width / 2, index, part, **where)
            end += width
    name_bars(panel, [bar.label for bar in chart.bars], texts, top)
    panel.set_xlabel(chart.unit, loc="left")
    place_legend(panel)


@draw.register
def _(chart: LineChart, panel: Any) -> None:
    for index, series in enumerate(chart.series):
        points = [p for p in series.points if is_drawable(p, chart.log_x, chart.log_y)]
        panel.plot(
            *([x for x, _ in points], [y for _, y in points]),
            color=PALETTE[SERIES[index % len(SERIES)]],
            marker=MARKERS[index % len(MARKERS)],
            markersize=3,
            linewidth=2.2 if series.is_strong else 1.2,
            linestyle="--" if index >= len(SERIES) else "-",
            label=shorten(series.name),
            zorder=3 if series.is_strong else 2,
        )
    xs = sorted({x for series in chart.series for x, _ in series.points})
    scale_axis(panel, "x", chart.log_x, xs)
    scale_axis(panel, "y", chart.log_y, ())
    finish_plot(panel, chart.x_label, chart.y_label, chart.bound)
    if len(chart.series) > 1:
        place_legend(panel)


def is_drawable(point: tuple[float, float], log_x: bool, log_y: bool) -> bool:
    """Whether a point has a place on the axes."""
    x, y = point
    finite = math.isfinite(x) and math.isfinite(y)
    return finite and (x > 0 or not log_x) and (y > 0 or not log_y)


@draw.register
def _(chart: ScatterChart, panel: Any) -> None:
    front = list(chart.front)
    panel.plot(
        [dot.x for dot in front], [dot.y for dot in front], color=PALETTE[OURS], lw=1
    )
    # What matters is drawn last, on top.
    for dot in sorted(chart.dots, key=lambda dot: (dot.is_strong, dot in front)):
        colour = "s3" if dot.is_strong else "s0" if dot in front else "grey"
        marker = "D" if dot.is_strong else "o"
        panel.plot(dot.x, dot.y, marker, color=PALETTE[colour], markersize=4, zorder=3)
    for number, dot in enumerate(front, start=1):
        panel.annotate(
            str(number), (dot.x, dot.y), xytext=(0, 5), textcoords="offset points"
        )
    scale_axis(panel, "y", chart.log_y, ())
    panel.set_xlim(left=0)
    finish_plot(panel, chart.x_label, chart.y_label, chart.bound)


@draw.register
def _(chart: Histogram, panel: Any) -> None:
    import numpy as np

    values = np.asarray(chart.values)
    is_log = values.min() > 0 and values.max() / values.min() > LOG_SPAN
    space = np.geomspace if is_log else np.linspace
    bins = space(values.min(), max(values.max(), values.min() + 1e-9), HISTOGRAM_BINS)
    panel.hist(values, bins=bins, color=PALETTE[OURS])
    if is_log:
        scale_axis(panel, "x", True, ())
    marks = {percent: percentile(chart.values, percent) for percent in HISTOGRAM_MARKS}
    for place in marks.values():
        panel.axvline(place, color=PALETTE["text"], linestyle="--", linewidth=0.8)
    said = ", ".join(f"p{p} {format_figure(value)}" for p, value in marks.items())
    panel.set_xlabel(f"{chart.x_label}; {said}", loc="left")
    panel.grid(axis="y")


@draw.register
def _(chart: Waterfall, panel: Any) -> None:
    spans = chart.spans
    colours = assign_colours(span.part for span in spans)
    panel.barh(
        range(len(spans)),
        [span.length for span in spans],
        left=[span.start for span in spans],
        color=[colours[span.part] for span in spans],
        height=0.7,
    )
    top = max((span.start + span.length for span in spans), default=1.0)
    name_bars(panel, [s.label for s in spans], [s.text for s in spans], top)
    panel.set_xlabel(chart.unit, loc="left")
