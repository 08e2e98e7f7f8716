"""Renders a report as one self-contained HTML page.

It loads nothing from elsewhere, follows light and dark mode, and is readable at a width of 390
pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

from offpath.profiling.report.document import Document
from offpath.profiling.report.drawings import inline_svg


def write_page(document: Document, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_page(document), encoding="utf-8")


def render_page(document: Document) -> str:
    return environment().get_template("page.html").render(document=document)


@lru_cache
def environment() -> Environment:
    """Returns the environment of the templates, which renders Markdown and draws charts."""
    made = Environment(
        loader=PackageLoader("offpath.profiling.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    # A table wider than a phone scrolls by itself.
    markdown.add_render_rule("table_open", lambda *_: '<div class="scroll" tabindex="0"><table>\n')
    markdown.add_render_rule("table_close", lambda *_: "</table></div>\n")
    made.filters["markdown"] = lambda text: Markup(markdown.render(text))
    # The texts of an SVG are escaped already.
    made.filters["svg"] = lambda chart: Markup(inline_svg(chart))
    made.filters["by_kind"] = group_by_kind
    return made


def group_by_kind(warnings: Sequence[str]) -> dict[str, list[str]]:
    """Groups warnings by the words before their first colon: noise, spread, failures.

    A warning without a colon is a kind of its own.
    """
    groups: dict[str, list[str]] = {}
    for warning in warnings:
        groups.setdefault(warning.partition(": ")[0], []).append(warning)
    return groups
