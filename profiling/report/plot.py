"""Draws results: requests a second by server with the limit as a line, and a sweep's curves.

Transparent, in greys and colours that read on white and on black: GitHub shows the same file in its
light and dark themes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.result import BenchResult
from offpath.profiling.core.summary import (
    DrawnLimit,
    Row,
    drawn_limit,
    percentile,
    summarise,
)
from offpath.profiling.experiments.sweep_result import Step, SweepResult
from offpath.profiling.report.bars import Bar

TEXT = "#7d8590"
GRID = "#7d859055"
OURS = "#2f81f7"
OTHERS = "#8b949e"
LIMIT = "#d4781f"
INCHES_PER_BAR = 0.42
# In units of the longest bar or limit.
FIGURES_AT = 1.06
# Of a sweep's servers, in the order of the run.
COLOURS = (
    *(OURS, LIMIT, "#3fb950", "#a371f7", "#f85149", "#8b949e"),
    *("#db61a2", "#39c5cf", "#bb8009", "#6e7681", "#1f6feb"),
)
SUFFIXES = (".svg", ".png")


def save_plot(result: BenchResult, baseline: str | None, path: Path) -> None:
    """Writes an SVG or PNG with one panel per workload.

    Raises:
        ExpectedError: another suffix, or matplotlib is missing.
    """
    with plotting(path):
        draw(result, baseline, path)


def save_sweep_plot(result: SweepResult, path: Path) -> None:
    """Writes an SVG or PNG with three panels: rate, latency and failures against virtual users.

    Raises:
        ExpectedError: another suffix, or matplotlib is missing.
    """
    with plotting(path):
        draw_sweep(result, path)


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
            drawn_limit(result, workload),
        )
    write_figure(figure, path)


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


def place_legend(figure: Any, panel: Any) -> None:
    """Names a panel's lines in a row below all panels, where no line is."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        fontsize=9,
        labelcolor=TEXT,
    )


def draw_panel(panel: Any, rows: Sequence[Row], limit: DrawnLimit | None) -> None:
    """Rates of all servers, the cores' limit dashed."""
    bars = []
    for row in rows:
        ratio = "" if row.ratio is None else f"  ({row.ratio:.1f} x)"
        text = f"{format_figure(row.rate)}{ratio}"
        is_ours = row.server.startswith("offpath")
        bar = Bar(row.server, row.rate, text, is_ours, row.rate_low, row.rate_high)
        bars.append(bar)
    line = limit and (limit.rate, f"{limit.name}: {format_figure(limit.rate)} ")
    draw_bars(panel, bars, line)
    panel.set_xlabel("requests a second", color=TEXT)


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


def draw_sweep(result: SweepResult, path: Path) -> None:
    """Draws the three panels side by side, one colour per server."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(13.5, 4.2))
    servers = [
        name
        for name in result.servers
        if any(step.server == name for step in result.steps)
    ]
    for name, colour in zip(servers, cycle(COLOURS)):
        steps = [step for step in result.steps if step.server == name]
        draw_curve(panels[0], steps, lambda step: step.rate, colour, label=name)
        draw_curve(panels[1], steps, lambda step: latency_ms(step, 50), colour)
        draw_curve(panels[1], steps, lambda step: latency_ms(step, 95), colour, ":")
        draw_curve(panels[2], steps, lambda step: sum(step.failed.values()), colour)
    titles = ("good replies a second", "p50 and p95 (dotted), ms", "failed responses")
    users = sorted({step.users for step in result.steps})
    for panel, title in zip(panels, titles):
        panel.set_title(title, color=TEXT, fontsize=11, loc="left")
        panel.set_xscale("log", base=2)
        panel.set_xticks(users, [str(count) for count in users])
        panel.minorticks_off()
        panel.set_xlabel("virtual users", color=TEXT)
        style_panel(panel, "both")
    panels[0].set_ylim(bottom=0)
    panels[1].set_yscale("log")
    panels[1].yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    panels[1].minorticks_off()
    most = max((sum(step.failed.values()) for step in result.steps), default=0)
    panels[2].set_ylim(0, 1.05 * max(1, most))
    if not most:
        panels[2].set_yticks([0, 1])
    if servers:
        place_legend(figure, panels[0])
    write_figure(figure, path)


def draw_curve(
    panel: Any,
    steps: Sequence[Step],
    figure_of: Callable[[Step], float],
    colour: str,
    style: str = "-",
    label: str | None = None,
) -> None:
    """One server's figure against users."""
    panel.plot(
        [step.users for step in steps],
        [figure_of(step) for step in steps],
        style,
        color=colour,
        marker="o",
        markersize=3,
        label=label,
    )


def latency_ms(step: Step, percent: float) -> float:
    """A percentile of a step's good replies."""
    return percentile(step.latencies_ms, percent)
