"""Draws the charts of a document: matplotlib makes the picture, the page's own colours fill it.

One drawing serves the page (inline SVG whose colours are the page's CSS variables, so that dark
mode is the page's) and the file for a README (the same SVG with the palette inside, or a PNG).
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import singledispatch
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.statistics import percentile
from offpath.profiling.report.document import (
    BarChart,
    Chart,
    Histogram,
    LineChart,
    ScatterChart,
    StackedChart,
    Waterfall,
)

# Of templates/palette.css in the light; each is replaced by its variable in an SVG.
PALETTE = {
    **{"s0": "#0072b2", "s1": "#e69f00", "s2": "#009e73", "s3": "#d55e00"},
    **{"s4": "#56b4e9", "s5": "#cc79a7", "s6": "#d9c400", "s7": "#7f5539"},
    **{"grey": "#b4bac1", "text": "#1f2328", "soft": "#59636e", "line": "#d1d9e0"},
    # Letters on a colour; on the dark ones of PALE_ON white, in the light.
    **{"on": "#16191d", "on-s0": "#fffffe"},
}
PALE_ON = (PALETTE["s0"], PALETTE["s7"])
# Width of a letter in a bar, of the drawing's.
LETTER = 0.0145
SERIES = ("s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7")
MARKERS = ("o", "s", "^", "D", "v", "P")
OURS, OTHERS, LIMIT = "s0", "grey", "s3"
# The same work has the same colour in every chart, whether a stage or a bucket names it.
COLOUR_OF = {
    **dict.fromkeys(("inference", "forward", "workers", "worker and handler"), "s0"),
    **dict.fromkeys(("read", "config", "file I/O", "front end"), "s1"),
    **dict.fromkeys(("client, socket and front end",), "s1"),
    **dict.fromkeys(("transform", "resize", "preprocess"), "s2"),
    **dict.fromkeys(("S3", "s3", "queue"), "s3"),
    **dict.fromkeys(("decode",), "s4"),
    **dict.fromkeys(("postprocess", "serialise"), "s5"),
    **dict.fromkeys(("transfer", "tensor", "worker protocol"), "s6"),
    **dict.fromkeys(("log", "logging"), "s7"),
    **dict.fromkeys(("other", "load", "handler, other", "not accounted for"), "grey"),
}
SUFFIXES = (".svg", ".png")
# A chart is 4.4 inches wide: its letters stay readable on a phone and grow on a desktop.
WIDTH_IN = 4.4
LINE_HEIGHT_IN = 2.5
HISTOGRAM_HEIGHT_IN = 1.5
BAR_HEIGHT_IN = 0.25
LABEL_LENGTH = 32
HISTOGRAM_BINS = 48
LEGEND_COLUMNS, LEGEND_ROW_PT = 3, 12.0
HISTOGRAM_MARKS = (50, 95, 99)
# From this span on a logarithmic axis shows more than a linear one.
LOG_SPAN = 8.0
# So many x values, so far apart, are ticks of their own.
FEW, APART = 16, 1.4
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "svg.fonttype": "none",
    # A name with two dollars is a name.
    "text.parse_math": False,
    "svg.hashsalt": "offpath",
    "font.family": "sans-serif",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "text.color": PALETTE["text"],
    "axes.labelcolor": PALETTE["soft"],
    "xtick.color": PALETTE["soft"],
    "ytick.color": PALETTE["text"],
    "axes.edgecolor": PALETTE["line"],
    "grid.color": PALETTE["line"],
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
}


def draw_charts(charts: Sequence[Chart], path: Path) -> None:
    """Writes the charts as one picture, one below the other.

    Raises:
        ExpectedError: another suffix than .svg or .png, nothing to draw, or matplotlib is missing.
    """
    if path.suffix not in SUFFIXES:
        raise ExpectedError(
            f"plot {str(path)!r}: expected a name ending in .svg or .png"
        )
    if not charts:
        raise ExpectedError(f"nothing to draw in {str(path)!r}: no figures yet")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svg":
        svg = draw_svg(charts)
        path.write_text(svg.replace("<defs>", f"{read_palette()}\n <defs>", 1))
    else:
        path.write_bytes(render(charts, "png"))


def inline_svg(chart: Chart) -> str:
    """One chart for a page, without the XML head; its colours are the page's variables."""
    svg = draw_svg([chart])
    svg = svg[svg.index("<svg") :]
    # Sized by the page; ids that every figure has would occur twice there.
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="(?!m|clip-)[A-Za-z0-9_]+"', "", svg)
    # It would hold for the whole page; templates/style.css has it for the charts.
    svg = re.sub(r"<style.*?</style>", "", svg, count=1, flags=re.DOTALL)
    label = escape(chart.title)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def draw_svg(charts: Sequence[Chart]) -> str:
    """The charts' SVG in the palette's variables; the same charts give the same text.

    matplotlib names clip paths by addresses in memory: they are numbered instead, behind a word of
    the charts' own, because several pictures stand on one page.
    """
    svg = to_variables(render(charts, "svg").decode())
    word = hashlib.sha1(repr(charts).encode()).hexdigest()[:8]
    names = dict.fromkeys(re.findall(r"url\(#(p[0-9a-f]+)\)", svg))
    for number, name in enumerate(names):
        svg = svg.replace(f"#{name})", f"#clip-{word}-{number})")
        svg = svg.replace(f'id="{name}"', f'id="clip-{word}-{number}"')
    return svg


def to_variables(svg: str) -> str:
    """The palette's colours as CSS variables."""
    for name, colour in PALETTE.items():
        svg = svg.replace(colour, f"var(--{name})")
    # Named faces are this machine's; a reader's own is as good.
    return re.sub(
        r"font: ([^;'\"]*?)(?:'[^;\"]*|sans-serif[^;\"]*)", r"font: \1sans-serif", svg
    )


def read_palette() -> str:
    """The palette as an SVG's own style sheet, with its dark mode."""
    css = Path(__file__).parent / "templates" / "palette.css"
    return f"<style>{css.read_text()}</style>"


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
        ExpectedError: it is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ExpectedError(
            "matplotlib is not installed; get it with: pip install 'torchserve-offpath[bench]'"
        ) from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        yield pyplot


def style_panel(panel: Any) -> None:
    """No frame and no ticks' marks."""
    panel.tick_params(length=0)
    for side in panel.spines.values():
        side.set_visible(False)


def assign_colours(parts: Iterable[str]) -> dict[str, str]:
    """Part -> colour: the known ones keep theirs, the others take what is left, in turn."""
    names = list(dict.fromkeys(parts))
    colours: dict[str, str] = {}
    for name in names:
        own = COLOUR_OF.get(name)
        if own is not None and (own == "grey" or own not in colours.values()):
            colours[name] = own
    free = [colour for colour in SERIES if colour not in colours.values()]
    # Of those whose colour is another's here: as long as there are free ones.
    for name in [name for name in names if name in COLOUR_OF and name not in colours]:
        colours[name] = free.pop() if free else COLOUR_OF[name]
    left = cycle(free or SERIES)
    return {
        name: PALETTE[colours[name] if name in colours else next(left)]
        for name in names
    }


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


def name_bars(
    panel: Any, labels: Sequence[str], texts: Sequence[str], top: float
) -> None:
    """Names at the left; figures in a column of their own, where neither bar nor line crosses."""
    panel.set_yticks(range(len(labels)), [shorten(label) for label in labels])
    panel.set_ylim(len(labels) - 0.4, -0.6)
    longest = max((len(shorten(text)) for text in texts), default=0)
    panel.set_xlim(0, top * (1.05 + 0.024 * longest))
    panel.set_xticks([tick for tick in panel.get_xticks() if 0 <= tick <= top])
    panel.grid(axis="x")
    for index, text in enumerate(texts):
        panel.text(1.04 * top, index, shorten(text), va="center")


def shorten(label: str) -> str:
    """A name that leaves room for its bar; the tables beside have it whole."""
    return label if len(label) <= LABEL_LENGTH else f"{label[: LABEL_LENGTH - 1]}…"


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


def place_legend(panel: Any) -> None:
    """Names in rows above the drawing, where nothing is drawn."""
    panel.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=LEGEND_COLUMNS,
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.2,
    )


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


def scale_axis(panel: Any, axis: str, is_log: bool, values: Sequence[float]) -> None:
    """Plain numbers on both kinds of axis; few values of a logarithmic one are its ticks."""
    if not is_log:
        panel.set(**{f"{axis}lim": (0 if axis == "y" else None, None)})
        return
    from matplotlib.ticker import LogLocator, NullLocator

    panel.set(**{f"{axis}scale": "log"})
    which = getattr(panel, f"{axis}axis")
    ends = panel.get_xlim() if axis == "x" else panel.get_ylim()
    # Within a decade or two, 1, 2 and 5 of each; then the powers alone.
    subs = (1, 2, 5) if ends[1] < 300 * ends[0] else (1,)
    which.set_major_locator(LogLocator(subs=subs))
    which.set_major_formatter(lambda value, _: f"{value:,g}")
    which.set_minor_locator(NullLocator())
    if are_ticks(values):
        panel.set(**{f"{axis}ticks": values})


def are_ticks(values: Sequence[float]) -> bool:
    """Whether each value has room for a text of its own on a logarithmic axis."""
    return 1 < len(values) <= FEW and all(
        below > 0 and above / below >= APART for below, above in zip(values, values[1:])
    )


def finish_plot(
    panel: Any, x_label: str, y_label: str, bound: tuple[float, str] | None
) -> None:
    """Labels, grid and a dashed horizontal line."""
    panel.set_xlabel(x_label, loc="right")
    panel.set_ylabel(y_label)
    panel.grid()
    if bound:
        place, name = bound
        panel.axhline(place, color=PALETTE[LIMIT], linestyle="--", linewidth=1.1)
        panel.annotate(
            name,
            (0.01, place),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            color=PALETTE[LIMIT],
        )


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
