"""Pictures of charts: inline SVG for a page, a file for a README.

One drawing serves both: colours of an SVG are the page's CSS variables, so that dark mode is the
page's; a file has the palette inside.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.profiling.report.chart import render
from offpath.profiling.report.document import Chart
from offpath.profiling.report.style import PALETTE

SUFFIXES = (".svg", ".png")


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
