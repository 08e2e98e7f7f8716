"""Draws a benchmark's result: requests a second by server, with the limit as a line.

Transparent, in greys and colours that read on white and on black: GitHub shows the same file in its
light and dark themes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from profiling.result import BenchResult
from profiling.summary import Row, limit_rate, summarise

TEXT = "#7d8590"
GRID = "#7d859055"
OURS = "#2f81f7"
OTHERS = "#8b949e"
LIMIT = "#d4781f"
INCHES_PER_BAR = 0.42
# In units of the longest bar or limit.
FIGURES_AT = 1.06
SUFFIXES = (".svg", ".png")


def save_plot(result: BenchResult, baseline: str | None, path: Path) -> None:
    """Writes an SVG or PNG with one panel per workload.

    Raises:
        ExpectedError: another suffix, or matplotlib is missing.
    """
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
    # No window system; fixed ids, so that the same result gives the same file.
    matplotlib.use("agg")
    with matplotlib.rc_context(
        {"svg.hashsalt": "offpath", "font.size": 11, "text.color": TEXT}
    ):
        draw(result, baseline, path)


def draw(result: BenchResult, baseline: str | None, path: Path) -> None:
    """Draws all panels side by side."""
    from matplotlib import pyplot

    rows = summarise(result, baseline)
    workloads = list(result.workloads)
    height = 1.3 + INCHES_PER_BAR * len(result.servers)
    figure, panels = pyplot.subplots(
        1, len(workloads), figsize=(4.6 * len(workloads), height), squeeze=False
    )
    for panel, workload in zip(panels[0], workloads):
        mean_kb = result.workloads[workload]["mean_bytes"] / 1000
        panel.set_title(
            f"{workload} ({mean_kb:,.0f} kB mean)", color=TEXT, fontsize=11, loc="left"
        )
        draw_panel(
            panel,
            [r for r in rows if r.workload == workload],
            limit_rate(result, workload),
        )
    figure.tight_layout()
    # Without a date: the same result gives the same file.
    figure.savefig(path, transparent=True, dpi=150, metadata=metadata_for(path))
    pyplot.close(figure)


def metadata_for(path: Path) -> dict[str, Any]:
    """What keeps a file the same from run to run."""
    return {"Date": None} if path.suffix == ".svg" else {"Software": None}


def draw_panel(panel: Any, rows: Sequence[Row], limit: float | None) -> None:
    """Horizontal bars with their figures, the spread as a thin line, the limit dashed."""
    names = [row.server for row in rows]
    rates = [row.rate for row in rows]
    colours = [OURS if name.startswith("offpath") else OTHERS for name in names]
    errors = [
        [row.rate - row.rate_low for row in rows],
        [row.rate_high - row.rate for row in rows],
    ]
    panel.barh(
        names, rates, color=colours, height=0.62, xerr=errors, ecolor=TEXT, capsize=2
    )
    panel.invert_yaxis()
    top = max([*(row.rate_high for row in rows), limit or 0])
    # The figures stand in a column of their own, where neither bar nor limit crosses them.
    panel.set_xlim(0, top * FIGURES_AT * 1.38)
    panel.set_xticks([tick for tick in panel.get_xticks() if tick <= top])
    for index, row in enumerate(rows):
        ratio = "" if row.ratio is None else f"  ({row.ratio:.1f} x)"
        panel.text(top * FIGURES_AT, index, f"{row.rate:,.0f}{ratio}", va="center")
    if limit:
        panel.axvline(limit, color=LIMIT, linestyle="--", linewidth=1.3)
        panel.text(
            limit,
            len(rows) - 0.45,
            f"decode alone: {limit:,.0f} ",
            color=LIMIT,
            ha="right",
            va="top",
        )
        panel.set_ylim(len(rows) - 0.1, -0.6)
    panel.set_xlabel("requests a second", color=TEXT)
    panel.tick_params(colors=TEXT, length=0)
    panel.grid(axis="x", color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)
    for side in panel.spines.values():
        side.set_visible(False)
