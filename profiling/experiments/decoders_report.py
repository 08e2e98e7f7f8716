"""Shows a comparison of decoders: tables for the terminal, bars as SVG or PNG, one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from offpath.profiling.core.facts import (
    describe_host,
    describe_settings,
    describe_versions,
    describe_workload,
    format_time,
)
from offpath.profiling.core.figures import format_figure
from offpath.profiling.experiments.decoders import DecodersResult
from offpath.profiling.experiments.decoders_summary import (
    DecodersRow,
    find_decoder_warnings,
    summarise_decoders,
)
from offpath.profiling.experiments.decoders_ways import BASELINES, DECODER, PAIR
from offpath.profiling.report.page import (
    Bar,
    Section,
    bar_chart,
    render_page,
    table,
    write_html,
)
from offpath.profiling.report.plot import (
    FIGURES_AT,
    INCHES_PER_BAR,
    OTHERS,
    OURS,
    TEXT,
    plotting,
    style_panel,
    write_figure,
)
from offpath.profiling.report.report import new_table

COLUMNS = ("ms", "range", "MB/s", "x", "probability", "top-1")
KINDS = (DECODER, PAIR)


def list_rows(result: DecodersResult) -> dict[tuple[str, str], list[DecodersRow]]:
    """(workload, kind) -> its rows; without those of which nothing was measured."""
    rows = {
        (workload, kind): [
            row for row in summarise_decoders(result, workload) if row.kind == kind
        ]
        for workload in result.workloads
        for kind in KINDS
    }
    return {key: value for key, value in rows.items() if value}


def format_cells(row: DecodersRow) -> list[str]:
    """A row's figures as text, in the order of COLUMNS."""
    return [
        format_figure(row.ms),
        f"{format_figure(row.ms_low)}-{format_figure(row.ms_high)}",
        f"{row.mb_per_s:,.0f}",
        f"{row.ratio:.2f}",
        f"{row.difference:.4f}",
        str(row.changed),
    ]


def format_title(result: DecodersResult, workload: str, kind: str) -> str:
    """What a table or panel shows."""
    return f"{workload}, {kind}: CPU ms an image; x: to {BASELINES[kind]}"


def print_decoders(result: DecodersResult, console: Console) -> None:
    """Prints two tables a workload, what cannot run here, and what makes the figures doubtful."""
    rows = list_rows(result)
    for (workload, kind), group in rows.items():
        shown = new_table(format_title(result, workload, kind), *COLUMNS, first="way")
        for row in group:
            shown.add_row(
                f"[bold]{row.way}[/]" if row.is_ours else row.way, *format_cells(row)
            )
        console.print(shown)
    for workload, facts in result.workloads.items():
        console.print(f"{workload}: {describe_workload(facts)}", highlight=False)
    for name, reason in result.not_run.items():
        console.print(f"[yellow]not run: {name}:[/] {escape(reason)}", highlight=False)
    for warning in list_warnings(rows.values()):
        console.print(f"[yellow]{escape(warning)}[/]", highlight=False)


def list_warnings(groups: Any) -> list[str]:
    """Of all tables together."""
    return find_decoder_warnings([row for group in groups for row in group])


def write_decoders_page(result: DecodersResult, path: Path) -> None:
    """Writes the result's page, replacing the file."""
    rows = list_rows(result)
    workloads = {
        name: describe_workload(facts) for name, facts in result.workloads.items()
    }
    page = render_page(
        "JPEG decoders on one core",
        [make_section(result, *key, group) for key, group in rows.items()],
        command=result.command,
        facts={
            "taken": format_time(result.started_at),
            "host": describe_host(result.host),
            **workloads,
        },
        details={
            "versions": describe_versions(result.host),
            "settings": describe_settings(result.settings),
            **{
                way: describe_settings(facts["versions"])
                for way, facts in result.ways.items()
                if facts["versions"]
            },
        },
        warnings=[
            *(f"not run: {name}: {reason}" for name, reason in result.not_run.items()),
            *list_warnings(rows.values()),
        ],
    )
    write_html(page, path)


def make_section(
    result: DecodersResult, workload: str, kind: str, rows: Sequence[DecodersRow]
) -> Section:
    """Bars and their table."""
    bars = [
        Bar(row.way, row.ms, format_bar(row), row.is_ours, row.ms_low, row.ms_high)
        for row in rows
    ]
    title = format_title(result, workload, kind)
    cells = [[row.way, *format_cells(row)] for row in rows]
    return Section(
        f"{workload}: {kind}",
        bar_chart(bars, label=title) + table(["way", *COLUMNS], cells),
        "Milliseconds of CPU an image, one core, median of the rounds; the thin line spans them."
        f" x: how many times as quick as {BASELINES[kind]}. probability: the largest difference"
        " from the stock way's answers; top-1: photographs whose best class is another.",
    )


def format_bar(row: DecodersRow) -> str:
    """A bar's figure."""
    return f"{format_figure(row.ms)} ms ({row.ratio:.1f} x)"


def save_decoders_plot(result: DecodersResult, path: Path) -> None:
    """Writes an SVG or PNG with a panel for each table.

    Raises:
        ExpectedError: another suffix, or matplotlib is missing.
    """
    rows = list_rows(result)
    with plotting(path):
        draw_decoders(rows, path)


def draw_decoders(groups: dict[tuple[str, str], list[DecodersRow]], path: Path) -> None:
    """Draws decoders above pairs, one column a workload."""
    from matplotlib import pyplot

    workloads = list(dict.fromkeys(workload for workload, _ in groups))
    counts = [
        max(len(groups.get((workload, kind), ())) for workload in workloads)
        for kind in KINDS
    ]
    figure, panels = pyplot.subplots(
        len(KINDS),
        len(workloads),
        figsize=(6.2 * len(workloads), 1.8 + INCHES_PER_BAR * sum(counts)),
        height_ratios=counts,
        squeeze=False,
    )
    for index, kind in enumerate(KINDS):
        for panel, workload in zip(panels[index], workloads):
            title = f"{workload}, {kind}: CPU ms an image"
            panel.set_title(title, color=TEXT, fontsize=11, loc="left")
            draw_bars(panel, groups[workload, kind])
    write_figure(figure, path)


def draw_bars(panel: Any, rows: Sequence[DecodersRow]) -> None:
    """Horizontal bars with their figures in a column at the right."""
    values = [row.ms for row in rows]
    spread = [[r.ms - r.ms_low for r in rows], [r.ms_high - r.ms for r in rows]]
    colours = [OURS if row.is_ours else OTHERS for row in rows]
    style = {"color": colours, "height": 0.62, "ecolor": TEXT, "capsize": 2}
    panel.barh([row.way for row in rows], values, xerr=spread, **style)
    panel.invert_yaxis()
    top = max(row.ms_high for row in rows)
    panel.set_xlim(0, top * FIGURES_AT * 1.45)
    panel.set_xticks([tick for tick in panel.get_xticks() if tick <= top])
    for index, row in enumerate(rows):
        panel.text(top * FIGURES_AT, index, format_bar(row), va="center")
    style_panel(panel, "x")
