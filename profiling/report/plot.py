"""Draws results: requests a second by server with the limit as a line, and a sweep's curves.

Transparent, in greys and colours that read on white and on black: GitHub shows the same file in its
light and dark themes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.report.bars import Bar

TEXT = "#7d8590"
GRID = "#7d859055"
OURS = "#2f81f7"
OTHERS = "#8b949e"
LIMIT = "#d4781f"
INCHES_PER_BAR = 0.42
# In units of the longest bar or limit.
FIGURES_AT = 1.06
SUFFIXES = (".svg", ".png")


@contextmanager
def plotting(path: Path) -> Iterator[None]:
    """matplotlib without a window system, with fixed ids: the same result gives the same file."""
    if path.suffix not in SUFFIXES:
        raise ExpectedError(
            f"plot {str(path)!r}: expected a name ending in .svg or .png"
        )
    try:
        import matplotlib
    except ImportError as error:
        raise ExpectedError(
            "matplotlib is not installed; get it with: pip install 'torchserve-offpath[bench]'"
        ) from error
    matplotlib.use("agg")
    with matplotlib.rc_context(
        {"svg.hashsalt": "offpath", "font.size": 11, "text.color": TEXT}
    ):
        yield


def write_figure(figure: Any, path: Path) -> None:
    """Saves and closes a figure."""
    from matplotlib import pyplot

    # Unlike tight_layout it leaves room for a legend outside of the panels.
    figure.set_layout_engine("constrained")
    # Without a date: the same result gives the same file.
    figure.savefig(path, transparent=True, dpi=150, metadata=metadata_for(path))
    pyplot.close(figure)


def metadata_for(path: Path) -> dict[str, Any]:
    """What keeps a file the same from run to run."""
    return {"Date": None} if path.suffix == ".svg" else {"Software": None}


def draw_bars(
    panel: Any, bars: Sequence[Bar], limit: tuple[float, str] | None = None
) -> None:
    """Horizontal bars with their figures, the spread as a thin line, the limit dashed.

    Args:
        limit: where its line stands, and its name.
    """
    values = [bar.value for bar in bars]
    highs = [bar.value if bar.high is None else bar.high for bar in bars]
    errors = [
        [bar.value - (bar.value if bar.low is None else bar.low) for bar in bars],
        [high - bar.value for high, bar in zip(highs, bars)],
    ]
    panel.barh(
        [bar.label for bar in bars],
        values,
        color=[OURS if bar.strong else OTHERS for bar in bars],
        height=0.62,
        xerr=errors,
        ecolor=TEXT,
        capsize=2,
    )
    panel.invert_yaxis()
    top = max([*highs, limit[0] if limit else 0])
    # The figures stand in a column of their own, where neither bar nor limit crosses them.
    panel.set_xlim(0, top * FIGURES_AT * 1.38)
    panel.set_xticks([tick for tick in panel.get_xticks() if tick <= top])
    for index, bar in enumerate(bars):
        panel.text(top * FIGURES_AT, index, bar.text, va="center")
    if limit:
        place, name = limit
        panel.axvline(place, color=LIMIT, linestyle="--", linewidth=1.3)
        panel.text(place, len(bars) - 0.45, name, color=LIMIT, ha="right", va="top")
        panel.set_ylim(len(bars) - 0.1, -0.6)
    style_panel(panel, "x")


def style_panel(panel: Any, grid: str) -> None:
    """No frame, a faint grid along one axis or both."""
    panel.tick_params(colors=TEXT, length=0)
    panel.grid(axis=grid, color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)
    for side in panel.spines.values():
        side.set_visible(False)
