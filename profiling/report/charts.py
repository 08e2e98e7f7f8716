"""The kinds of charts: each holds its figures as plain data and draws itself with matplotlib.

They become a file for a README, or inline SVG for a page, with the legend above each drawing. The
colours of an SVG are CSS variables: inside a page they are the page's, so dark mode follows the
page; a file carries `templates/palette.css`, the same palette with its dark mode.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError, WrongOption

# The light palette of templates/palette.css. In an SVG each colour becomes a CSS variable.
PALETTE = {
    **{"s0": "#0072b2", "s1": "#e69f00", "s2": "#009e73", "s3": "#d55e00"},
    **{"s4": "#56b4e9", "s5": "#cc79a7", "s6": "#d9c400", "s7": "#7f5539"},
    **{"s8": "#a58ac9", "s9": "#882255"},
    **{"grey": "#b4bac1", "text": "#1f2328", "soft": "#59636e", "line": "#d1d9e0"},
}

SERIES = ("s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9")

OURS, OTHERS, LIMIT = "s0", "grey", "s3"

# The same work has the same colour in every chart, under the name of a stage. Two names share one
# only if no page has both.
COLOUR_OF = {
    "inference": "s0",
    "workers": "s0",
    "read": "s1",
    "front end": "s1",
    "transform": "s2",
    "s3": "s3",
    "decode": "s4",
    "postprocess": "s5",
    "transfer": "s6",
    "log": "s7",
    "preprocess": "s8",
    "config": "s9",
    "other": "grey",
    "load": "grey",
}

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "svg.fonttype": "none",
    # A name with two dollars is not a formula.
    "text.parse_math": False,
    "svg.hashsalt": "offpath",
    "font.family": "sans-serif",
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

Point = tuple[float, float]

# With 4.4 inches, letters stay readable on a phone and grow with the chart on a desktop.
WIDTH_IN = 4.4
BAR_HEIGHT_IN = 0.25
LINE_HEIGHT_IN = 2.2
MARKERS = ("o", "s", "^", "D", "v", "P")
LABEL_LENGTH = 32
# Up to FEW x values become the ticks, if each is at least APART times the one before.
FEW, APART = 16, 1.4
DASHED: dict[str, Any] = {"color": PALETTE[LIMIT], "linestyle": "--", "linewidth": 1.1}
# Estimated widths in points: of a letter in a legend, and of what a legend needs beside each name.
LEGEND_LETTER_PT, LEGEND_KEY_PT = 4.4, 26.0
LEGEND_ROW_PT = 12.0
TITLE_PT = 14.0
MAX_COLUMNS = 4


@dataclass(frozen=True)
class Chart(ABC):
    """One drawing with a title; the subclasses hold the figures."""

    title: str

    @property
    @abstractmethod
    def height_in(self) -> float:
        """Height of the drawing in inches, without its legend."""

    @property
    def names(self) -> Sequence[str]:
        return ()

    @abstractmethod
    def draw(self, panel: Any) -> None:
        """Draws the chart into a matplotlib `Axes`."""


@dataclass(frozen=True)
class Bar:
    """One bar; `text` is the figure written beside it.

    Attributes:
        low, high: its spread.
        parts: name -> length, in their order; the bar is stacked of them.
    """

    label: str
    value: float
    text: str
    is_strong: bool = False
    low: float | None = None
    high: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BarChart(Chart):
    """Horizontal bars on one scale with their figures beside them.

    Attributes:
        unit: text below the axis.
        limit: value and name of a dashed line through all bars.
    """

    unit: str
    bars: Sequence[Bar]
    limit: tuple[float, str] | None = None

    @property
    def height_in(self) -> float:
        return 0.6 + BAR_HEIGHT_IN * len(self.bars)

    @property
    def names(self) -> Sequence[str]:
        parts = dict.fromkeys(part for bar in self.bars for part in bar.parts)
        return [*parts, *([self.limit[1]] if self.limit else [])]

    def draw(self, panel: Any) -> None:
        colours, named = assign_colours(part for bar in self.bars for part in bar.parts), set()
        for index, bar in enumerate(self.bars):
            if not bar.parts:
                colour = PALETTE[OURS if bar.is_strong else OTHERS]
                panel.barh(index, bar.value, color=colour, height=0.68)
            end = 0.0
            for part, value in bar.parts.items():
                width, label = max(value, 0.0), "_" if part in named else shorten(part)
                panel.barh(index, width, left=end, color=colours[part], label=label)
                named.add(part)
                end += width
            if bar.low != bar.high:
                style = {"color": PALETTE["text"], "linewidth": 0.9, "markersize": 3}
                panel.plot([bar.low, bar.high], [index, index], marker="|", **style)
        if self.limit:
            panel.axvline(self.limit[0], label=self.limit[1], **DASHED)
        name_bars(panel, self.unit, [bar.label for bar in self.bars], [b.text for b in self.bars])


@dataclass(frozen=True)
class Series:
    """A named line through (x, y) points, drawn in their order."""

    name: str
    points: Sequence[Point]
    is_strong: bool = False


@dataclass(frozen=True)
class LineChart(Chart):
    """Lines with markers; a few x values become the ticks of their logarithmic axis.

    Attributes:
        bound: y value and name of a dashed horizontal line.
    """

    x_label: str
    y_label: str
    series: Sequence[Series]
    log_y: bool = False
    bound: tuple[float, str] | None = None

    @property
    def height_in(self) -> float:
        return LINE_HEIGHT_IN

    @property
    def names(self) -> Sequence[str]:
        names = [one.name for one in self.series] + ([self.bound[1]] if self.bound else [])
        return names if len(names) > 1 else []

    def draw(self, panel: Any) -> None:
        for index, series in enumerate(self.series):
            panel.plot(
                [x for x, _ in series.points],
                [y for _, y in series.points],
                color=PALETTE[SERIES[index % len(SERIES)]],
                marker=MARKERS[index % len(MARKERS)],
                markersize=3,
                linewidth=2.2 if series.is_strong else 1.2,
                linestyle="--" if index >= len(SERIES) else "-",
                label=shorten(series.name) if self.names else "_",
                zorder=3 if series.is_strong else 2,
            )
        if self.bound:
            panel.axhline(self.bound[0], label=self.bound[1], **DASHED)
        xs = sorted({x for series in self.series for x, _ in series.points})
        scale_logarithmically(panel, "x", xs)
        if self.log_y:
            scale_logarithmically(panel, "y", ())
        else:
            panel.set_ylim(0, None)
        panel.set_xlabel(self.x_label, loc="right")
        panel.set_ylabel(self.y_label)
        panel.grid()


def name_bars(panel: Any, unit: str, labels: Sequence[str], texts: Sequence[str]) -> None:
    """Writes the names at the left, the figures in a column at the right, the unit below."""
    places = range(len(labels))
    panel.set_yticks(places, map(shorten, labels))
    panel.set_ylim(len(labels) - 0.4, -0.6)
    panel.set_xlim(0, None)
    panel.locator_params(axis="x", nbins=5)
    panel.grid(axis="x")
    panel.set_xlabel(unit, loc="left")
    right = panel.secondary_yaxis("right")
    right.set_yticks(places, map(shorten, texts))
    right.tick_params(length=0)
    right.spines[:].set_visible(False)


def shorten(label: str) -> str:
    """Shortens a name in its middle so that its bar has room; the tables show it whole."""
    if len(label) <= LABEL_LENGTH:
        return label
    end = LABEL_LENGTH // 3
    return f"{label[: LABEL_LENGTH - end - 1]}…{label[-end:]}"


def scale_logarithmically(panel: Any, axis: str, values: Sequence[float]) -> None:
    """Makes an axis logarithmic, with plain numbers; a few values become its ticks."""
    from matplotlib.ticker import LogLocator, NullLocator

    panel.set(**{f"{axis}scale": "log"})
    which = getattr(panel, f"{axis}axis")
    low, high = which.get_view_interval()
    # Within two decades the ticks are 1, 2 and 5 of each, otherwise the powers of ten.
    which.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    which.set_major_formatter(lambda value, _: f"{value:,g}")
    which.set_minor_locator(NullLocator())
    are_apart = all(a > 0 and b / a >= APART for a, b in zip(values, values[1:]))
    if 1 < len(values) <= FEW and are_apart:
        which.set_ticks(values)


def assign_colours(parts: Iterable[str]) -> dict[str, str]:
    """Returns part -> colour: known parts keep their colour, the others take the free ones."""
    names = list(dict.fromkeys(parts))
    colours: dict[str, str] = {}
    for name in names:
        own = COLOUR_OF.get(name)
        if own is not None and (own == "grey" or own not in colours.values()):
            colours[name] = own
    free = [colour for colour in SERIES if colour not in colours.values()]
    left = cycle(free or SERIES)
    return {name: PALETTE[colours[name] if name in colours else next(left)] for name in names}


def draw_charts(charts: Sequence[Chart], path: Path) -> None:
    """Writes the charts as one drawing, one below the other.

    Raises:
        ExpectedError: the suffix is not .svg, there is nothing to draw, or matplotlib is missing.
    """
    if path.suffix != ".svg":
        raise WrongOption(f"plot {str(path)!r}: expected a name ending in .svg")
    if not charts:
        raise ExpectedError(f"nothing to draw in {str(path)!r}: no figures yet")
    path.parent.mkdir(parents=True, exist_ok=True)
    css = (Path(__file__).parent / "templates" / "palette.css").read_text()
    svg = draw_svg(charts, has_titles=True)
    path.write_text(svg.replace("<defs>", f"<style>{css}</style>\n <defs>", 1))


def inline_svg(chart: Chart) -> str:
    """Returns one chart as SVG for a page, without the XML head, in the page's colours."""
    svg = draw_svg([chart], has_titles=False)
    svg = svg[svg.index("<svg") :]
    # The page sets the size. Ids that every figure has would occur twice on the page.
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r' id="(?!m)[A-Za-z0-9_]+"', "", svg)
    # This style sheet would apply to the whole page; templates/style.css has its rules for charts.
    svg = re.sub(r"<style.*?</style>", "", svg, count=1, flags=re.DOTALL)
    label = escape(chart.title)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def draw_svg(charts: Sequence[Chart], has_titles: bool) -> str:
    """Returns the charts as SVG in the palette's variables and in the reader's sans-serif font."""
    svg = render(charts, has_titles)
    for name, colour in PALETTE.items():
        svg = svg.replace(colour, f"var(--{name})")
    return re.sub(r"font: ([^;'\"]*?)(?:'[^;\"]*|sans-serif[^;\"]*)", r"font: \1sans-serif", svg)


def render(charts: Sequence[Chart], has_titles: bool) -> str:
    """Draws all charts into one figure as SVG; equal charts give equal text."""
    import matplotlib

    # Without a window system.
    matplotlib.use("agg")
    from matplotlib import pyplot

    rows = [math.ceil(len(chart.names) / count_legend_columns(chart.names)) for chart in charts]
    heights = [
        chart.height_in + (LEGEND_ROW_PT * count + TITLE_PT * has_titles) / 72
        for chart, count in zip(charts, rows)
    ]
    drawing = io.StringIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # The reader's browser has fonts for the letters that matplotlib lacks.
        warnings.filterwarnings("ignore", "Glyph")
        figure = pyplot.figure(figsize=(WIDTH_IN, sum(heights)), layout="constrained")
        parts = figure.subfigures(len(charts), 1, height_ratios=heights, squeeze=False)
        for chart, part in zip(charts, parts[:, 0]):
            panel = part.subplots()
            panel.tick_params(length=0)
            panel.spines[:].set_visible(False)
            chart.draw(panel)
            add_legend(part, panel, chart.title if has_titles else None)
        for artist in figure.findobj():
            # Nothing reaches beyond its axes, and matplotlib names clip paths by memory addresses.
            artist.set_clip_on(False)
        unset = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawing, format="svg", transparent=True, metadata=unset)
        pyplot.close(figure)
    return drawing.getvalue()


def add_legend(part: Any, panel: Any, title: str | None) -> None:
    """Writes title and legend above the drawing, in as few rows as fit its width."""
    handles, names = panel.get_legend_handles_labels()
    if names or title:
        part.legend(
            handles,
            names,
            loc="outside upper left",
            ncols=count_legend_columns(names),
            title=title,
            title_fontproperties={"weight": "bold", "size": 9},
            alignment="left",
            columnspacing=1.2,
            handlelength=1.2,
        )


def count_legend_columns(names: Sequence[str]) -> int:
    """Returns the largest number of columns with which a legend fits the width."""
    for columns in range(min(MAX_COLUMNS, len(names)), 1, -1):
        # Matplotlib fills column by column, and the first ones take what is left over.
        rows, longer = divmod(len(names), columns)
        ends = [rows * (1 + index) + min(longer, 1 + index) for index in range(columns)]
        letters = sum(
            max(len(shorten(name)) for name in names[start:end])
            for start, end in zip([0, *ends], ends)
        )
        if LEGEND_KEY_PT * columns + LEGEND_LETTER_PT * letters <= 72 * WIDTH_IN:
            return columns
    return 1
