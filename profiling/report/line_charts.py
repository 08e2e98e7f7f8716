"""Line charts, scatters and histograms of the pages, as SVG in the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.summary import percentile
from offpath.profiling.report.charts import (
    COLOURS,
    MARKERS,
    Axis,
    Chart,
    Dot,
    Point,
    Series,
    list_ticks,
    new_chart,
    x_axis,
    y_axis,
)
from offpath.profiling.report.markup import render

CHART_HEIGHT = 260
HISTOGRAM_HEIGHT = 150
HISTOGRAM_BINS = 48
HISTOGRAM_MARKS = (50, 95, 99)
# From this span on a logarithmic axis shows more than a linear one.
LOG_SPAN = 8.0
# So many points of a line are marked, and so many values of x are ticks of their own.
FEW = 16


def line_chart(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    title: str,
    log_x: bool = False,
    log_y: bool = False,
    bound: tuple[float, str] | None = None,
) -> Markup:
    """Lines with markers; few x values are the ticks of a logarithmic axis.

    Args:
        bound: y value and name of a dashed horizontal line.
    """
    points = [p for one in series for p in one.points if is_drawable(p, log_x, log_y)]
    x_values = sorted({x for x, _ in points})
    y_values = [y for _, y in points] + ([bound[0]] if bound else [])
    x, y = x_axis(x_values, log_x), y_axis(y_values, log_y, CHART_HEIGHT)
    ticks = x_values if log_x and len(x_values) <= FEW else list_ticks(x)
    chart = new_chart(x, y, ticks, (x_label, y_label, title), CHART_HEIGHT)
    add_bound(chart, y, bound)
    for index, one in enumerate(series):
        points = [p for p in one.points if is_drawable(p, log_x, log_y)]
        add_series(
            chart, index, one, [(x.place(a), y.place(b), a, b) for a, b in points]
        )
    return render("chart.html", chart=chart)


def is_drawable(point: Point, log_x: bool, log_y: bool) -> bool:
    """Whether a point has a place on the axes."""
    x, y = point
    return (
        math.isfinite(x)
        and math.isfinite(y)
        and (x > 0 or not log_x)
        and (y > 0 or not log_y)
    )


def add_bound(chart: Chart, y: Axis, bound: tuple[float, str] | None) -> None:
    """Adds a dashed horizontal line."""
    if bound:
        chart.rules.append((y.place(bound[0]), bound[1]))


def add_series(
    chart: Chart,
    index: int,
    series: Series,
    placed: Sequence[tuple[float, float, float, float]],
) -> None:
    """Adds one line; markers and dashes tell apart what colours alone would not."""
    colour = f"s{index % COLOURS}"
    marker = MARKERS[(index + index // COLOURS) % len(MARKERS)]
    path = " ".join(f"{left},{top}" for left, top, _, _ in placed)
    width = "strong" if series.strong else "thin"
    dashes = " dashed" if index >= COLOURS else ""
    chart.lines.append((colour, path, width + dashes))
    chart.markers += [
        (
            colour,
            marker,
            left,
            top,
            f"{series.name}: {format_figure(b)} at {format_figure(a)}",
        )
        for left, top, a, b in placed[:: -(-len(placed) // FEW) or 1]
    ]
    chart.legend.append((colour, marker, series.name))


def scatter(
    dots: Sequence[Dot],
    x_label: str,
    y_label: str,
    *,
    title: str,
    front: Sequence[Dot] = (),
    bound: tuple[float, str] | None = None,
    log_y: bool = False,
) -> Markup:
    """Points; those of the front are joined and numbered in their order.

    Args:
        front: the Pareto front, from `pareto_front`.
        bound: y value and name of a dashed horizontal line.
    """
    y_values = [dot.y for dot in dots] + ([bound[0]] if bound else [])
    x = x_axis([dot.x for dot in dots], log=False)
    y = y_axis(y_values, log_y, CHART_HEIGHT)
    chart = new_chart(x, y, list_ticks(x), (x_label, y_label, title), CHART_HEIGHT)
    add_bound(chart, y, bound)
    path = " ".join(f"{x.place(dot.x)},{y.place(dot.y)}" for dot in front)
    chart.lines.append(("s0", path, "thin"))
    # What matters is drawn last, on top.
    for dot in sorted(dots, key=lambda dot: (dot.strong, dot in front)):
        colour = "s3" if dot.strong else "s0" if dot in front else "grey"
        shape = "diamond" if dot.strong else "circle"
        chart.markers.append((colour, shape, x.place(dot.x), y.place(dot.y), dot.label))
    chart.numbers = [
        (x.place(dot.x), y.place(dot.y), str(n)) for n, dot in enumerate(front, start=1)
    ]
    return render("chart.html", chart=chart)


def pareto_front(dots: Sequence[Dot]) -> list[Dot]:
    """Those that no other beats in both a larger x and a smaller y, by rising x."""
    front: list[Dot] = []
    for dot in sorted(dots, key=lambda dot: (-dot.x, dot.y)):
        if not front or dot.y < front[-1].y:
            front.append(dot)
    return front[::-1]


def histograms(
    values: Mapping[str, Sequence[float]], x_label: str, y_label: str
) -> list[Markup]:
    """One histogram per name, all on one x axis; percentiles are dashed lines."""
    pooled = [value for one in values.values() for value in one]
    if not pooled:
        return []
    log = min(pooled) > 0 and max(pooled) / min(pooled) > LOG_SPAN
    x = x_axis(pooled, log)
    return [
        render(
            "chart.html", chart=make_histogram(name, one, x, x_label, y_label, index)
        )
        for index, (name, one) in enumerate(values.items())
        if one
    ]


def make_histogram(
    name: str, values: Sequence[float], x: Axis, x_label: str, y_label: str, index: int
) -> Chart:
    """Counts of values in bins of equal width on the chart."""
    counts = [0] * HISTOGRAM_BINS
    width = (x.end - x.start) / HISTOGRAM_BINS
    for value in values:
        counts[min(int((x.place(value) - x.start) / width), HISTOGRAM_BINS - 1)] += 1
    y = y_axis([max(4.0, *counts)], False, HISTOGRAM_HEIGHT)
    marks = {percent: percentile(values, percent) for percent in HISTOGRAM_MARKS}
    said = ", ".join(
        f"p{percent} {format_figure(value)}" for percent, value in marks.items()
    )
    labels = (x_label, y_label, f"{name}: {said} {x_label}")
    chart = new_chart(x, y, list_ticks(x), labels, HISTOGRAM_HEIGHT)
    chart.marks = [(x.place(value), f"p{percent}") for percent, value in marks.items()]
    chart.bars = [
        bar(f"s{index % COLOURS}", x.start + n * width, width, y, count)
        for n, count in enumerate(counts)
        if count
    ]
    return chart


def bar(
    colour: str, left: float, width: float, y: Axis, count: int
) -> tuple[str, float, float, float, float, str]:
    """One bin's rectangle."""
    top = y.place(count)
    return (
        colour,
        round(left, 1),
        top,
        round(width, 1),
        round(y.start - top, 1),
        str(count),
    )
