"""The self-contained HTML pages: `render_page` puts sections together; their parts come from here.

Every part returns markup with the page's own CSS classes. A page loads nothing from anywhere,
follows light and dark mode, and reads at 390 pixels of width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from offpath.profiling.report.bars import (
    Bar,
    Span,
    StackedBar,
    assign_colours,
    bar_chart,
    legend,
    stacked_bars,
    waterfall,
)
from offpath.profiling.report.charts import Dot, Series
from offpath.profiling.report.line_charts import (
    histograms,
    line_chart,
    pareto_front,
    scatter,
)
from offpath.profiling.report.markup import render

__all__ = [
    "Bar",
    "Dot",
    "Section",
    "Series",
    "Span",
    "StackedBar",
    "assign_colours",
    "bar_chart",
    "histograms",
    "join",
    "legend",
    "line_chart",
    "pareto_front",
    "render_page",
    "scatter",
    "stacked_bars",
    "table",
    "waterfall",
    "write_html",
]


@dataclass(frozen=True)
class Section:
    """A headed part of a page; `note` says how to read it."""

    heading: str
    body: Markup
    note: str = ""


def render_page(
    title: str,
    sections: Iterable[Section],
    *,
    command: str = "",
    facts: Mapping[str, str] | None = None,
    details: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
) -> str:
    """A whole HTML page.

    Args:
        command: the command line that made the result.
        facts: what stands under the title: host, photographs.
        details: what is shown when asked for: versions, settings.
        warnings: what makes the figures doubtful; shown above them.
    """
    return render(
        "old_page.html",
        title=title,
        sections=list(sections),
        command=command,
        facts=facts or {},
        details=details or {},
        warnings=warnings,
    )


def write_html(html: str, path: Path) -> None:
    """Writes a page, making its folder where it lacks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    left: int = 1,
    total_row: bool = False,
    code: int | None = None,
) -> Markup:
    """A table of texts; on a phone it scrolls sideways inside the page.

    Args:
        caption: stands above the table.
        left: how many columns at the left hold words; the others hold figures.
        total_row: the last row is a sum.
        code: index of a column that holds source code.
    """
    return render(
        "table.html",
        headers=headers,
        rows=rows,
        caption=caption,
        left=left,
        total_row=total_row,
        code=code,
    )


def join(parts: Iterable[Markup]) -> Markup:
    """Several parts as the body of one section; charts stand side by side where there is room."""
    return render("join.html", parts=list(parts))
