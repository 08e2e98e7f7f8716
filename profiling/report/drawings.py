"""Drawings of charts: a file for a README, or inline SVG for a page.

Both come from one drawing. The colours of an SVG are CSS variables: inside a page they are the
page's, so dark mode follows the page; a file carries the palette itself.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError, MissingPackage, WrongOption
from offpath.profiling.report.charts import PALETTE, STYLE, WIDTH_IN, Chart, shorten

# Estimated widths in points: of a letter in a legend, and of what a legend needs beside each name.
LEGEND_LETTER_PT, LEGEND_KEY_PT = 4.4, 26.0
LEGEND_ROW_PT = 12.0
TITLE_PT = 14.0
MOST_COLUMNS = 4


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
    rows = [math.ceil(len(chart.names) / count_legend_columns(chart.names)) for chart in charts]
    heights = [
        chart.height_in + (LEGEND_ROW_PT * count + TITLE_PT * has_titles) / 72
        for chart, count in zip(charts, rows)
    ]
    with plotting() as pyplot:
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
        drawing = save(figure)
        pyplot.close(figure)
    return drawing


def save(figure: Any) -> str:
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # The reader's browser has fonts for the letters that matplotlib lacks.
        warnings.filterwarnings("ignore", "Glyph")
        unset = ("Creator", "Date", "Format", "Type")
        figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(unset))
    return buffer.getvalue()


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
    for columns in range(min(MOST_COLUMNS, len(names)), 1, -1):
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


@contextmanager
def plotting() -> Iterator[Any]:
    """Yields matplotlib's pyplot without a window system, in our style.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackage("matplotlib", "bench") from error
    matplotlib.use("agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(STYLE):
        yield pyplot
