"""Pictures of charts: a file for a README, or inline SVG for a page.

Both come from one drawing. The colours of an SVG are CSS variables: inside a page they are the
page's, so dark mode follows the page; a file carries the palette itself.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError, MissingPackage
from offpath.profiling.report.axes import WIDTH_IN, style_panel
from offpath.profiling.report.charts import Chart
from offpath.profiling.report.style import PALETTE, STYLE

SUFFIXES = (".svg", ".png")


def draw_charts(charts: Sequence[Chart], path: Path) -> None:
    """Writes the charts as one picture, one below the other.

    Raises:
        ExpectedError: the suffix is not .svg or .png, there is nothing to draw, or matplotlib is
            missing.
    """
    if path.suffix not in SUFFIXES:
        raise ExpectedError(f"plot {str(path)!r}: expected a name ending in .svg or .png")
    if not charts:
        raise ExpectedError(f"nothing to draw in {str(path)!r}: no figures yet")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svg":
        svg = draw_svg(charts)
        path.write_text(svg.replace("<defs>", f"{read_palette()}\n <defs>", 1))
    else:
        path.write_bytes(render(charts, "png"))


def inline_svg(chart: Chart) -> str:
    """Returns one chart as SVG for a page, without the XML head, in the page's colours."""
    svg = draw_svg([chart])
    svg = svg[svg.index("<svg") :]
    # The page sets the size. Ids that every figure has would occur twice on the page.
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="(?!m|clip-)[A-Za-z0-9_]+"', "", svg)
    # This style sheet would apply to the whole page; templates/style.css has its rules for charts.
    svg = re.sub(r"<style.*?</style>", "", svg, count=1, flags=re.DOTALL)
    label = escape(chart.title)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def draw_svg(charts: Sequence[Chart]) -> str:
    """Returns the charts as SVG in the palette's variables; equal charts give equal text.

    matplotlib names clip paths by memory addresses. They are numbered instead, behind a hash of
    the charts, because several pictures may be on one page.
    """
    svg = to_variables(render(charts, "svg").decode())
    prefix = f"clip-{hashlib.sha1(repr(charts).encode()).hexdigest()[:8]}"
    names = dict.fromkeys(re.findall(r"url\(#(p[0-9a-f]+)\)", svg))
    for number, name in enumerate(names):
        svg = svg.replace(f"#{name})", f"#{prefix}-{number})")
        svg = svg.replace(f'id="{name}"', f'id="{prefix}-{number}"')
    return svg


def to_variables(svg: str) -> str:
    """Replaces the palette's colours by CSS variables, and this machine's fonts by sans-serif."""
    for name, colour in PALETTE.items():
        svg = svg.replace(colour, f"var(--{name})")
    return re.sub(r"font: ([^;'\"]*?)(?:'[^;\"]*|sans-serif[^;\"]*)", r"font: \1sans-serif", svg)


def read_palette() -> str:
    """Returns the palette, with its dark mode, as an SVG's own style sheet."""
    css = Path(__file__).parent / "templates" / "palette.css"
    return f"<style>{css.read_text()}</style>"


def render(charts: Sequence[Chart], kind: str) -> bytes:
    """Draws all charts into one `svg` or `png` figure; equal charts give equal bytes."""
    with plotting() as pyplot:
        heights = [chart.height_in for chart in charts]
        figure, axes = pyplot.subplots(
            len(charts),
            1,
            figsize=(WIDTH_IN, sum(heights)),
            height_ratios=heights,
            squeeze=False,
        )
        for chart, panel in zip(charts, axes[:, 0]):
            style_panel(panel)
            chart.draw(panel)
            if len(charts) > 1 or kind == "png":
                panel.set_title(chart.title, pad=4.0 + 72 * chart.legend_in)
        figure.set_layout_engine("constrained")
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        with warnings.catch_warnings():
            if kind == "svg":
                # The reader's browser has fonts for the letters that matplotlib lacks.
                warnings.filterwarnings("ignore", "Glyph")
            figure.savefig(
                buffer,
                format=kind,
                transparent=kind == "svg",
                dpi=200,
                metadata=metadata,
            )
        pyplot.close(figure)
    return buffer.getvalue()


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
