"""A document as one self-contained HTML page.

It loads nothing from anywhere, follows light and dark mode, and reads at 390 pixels of width.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from offpath.profiling.report.charts import Chart
from offpath.profiling.report.document import Document, Table
from offpath.profiling.report.pictures import inline_svg


def write_page(document: Document, path: Path) -> None:
    """Writes the page, replacing the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_page(document), encoding="utf-8")


def render_page(document: Document) -> str:
    """The whole page."""
    return environment().get_template("page.html").render(document=document)


@lru_cache
def environment() -> Environment:
    """The templates, with the charts drawn as they come."""
    made = Environment(
        loader=PackageLoader("offpath.profiling.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.tests["table"] = lambda part: isinstance(part, Table)
    made.filters["svg"] = draw_inline
    return made


def draw_inline(chart: Chart) -> Markup:
    """The chart's SVG, made by us: safe as it is."""
    return Markup(inline_svg(chart))
