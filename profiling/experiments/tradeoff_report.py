"""Renders a trade-off: a table a knob for the terminal, its page, and the drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from offpath.profiling.core.figures import format_figure
from offpath.profiling.experiments.tradeoff import KNOBS
from offpath.profiling.experiments.tradeoff_result import TradeoffResult
from offpath.profiling.experiments.tradeoff_summary import (
    TradeoffFigure,
    list_clients,
    list_tradeoff_doubts,
    select_line,
    summarise_tradeoff,
)
from offpath.profiling.report.plot import (
    COLOURS,
    TEXT,
    place_legend,
    plotting,
    style_panel,
    write_figure,
)
from offpath.profiling.report.report import new_table

PRESET_MARK = " *"


def print_tradeoff(result: TradeoffResult, console: Console) -> None:
    """One table a knob, then what makes the figures doubtful."""
    figures = summarise_tradeoff(result)
    for knob in result.knobs:
        console.print(make_knob_table(result, figures, knob))
    console.print(f"* the preset: {result.reference}", highlight=False)
    for doubt in list_tradeoff_doubts(result, figures):
        console.print(f"[yellow]{escape(doubt)}[/]", highlight=False)


def make_knob_table(
    result: TradeoffResult, figures: Sequence[TradeoffFigure], knob: str
) -> Table:
    """A value a row; rate, p50 and p95 for each number of clients."""
    table = new_table(
        f"{KNOBS[knob]} | by clients; times in ms",
        *list_headers(result),
        first="",
    )
    for cells in list_knob_cells(result, figures, knob):
        table.add_row(*cells)
    return table


def list_headers(result: TradeoffResult) -> list[str]:
    """Three columns for each number of clients."""
    return [
        name
        for clients in list_clients(result)
        for name in (f"{clients}: req/s", "p50", "p95")
    ]


def list_knob_cells(
    result: TradeoffResult, figures: Sequence[TradeoffFigure], knob: str
) -> list[list[str]]:
    """The rows of a knob's table."""
    rows = []
    for value in result.knobs[knob]:
        mark = PRESET_MARK if value == getattr(result.reference, knob) else ""
        cells = [f"{value}{mark}"]
        for clients in list_clients(result):
            found = [f for f in select_line(figures, knob, clients) if f.value == value]
            cells += list_figures(found[0]) if found else [""] * 3
        rows.append(cells)
    return rows


def list_figures(figure: TradeoffFigure) -> list[str]:
    """Rate, p50, p95."""
    summary = figure.summary
    return [format_figure(v) for v in (summary.rate, summary.p50_ms, summary.p95_ms)]


def write_tradeoff_page(result: TradeoffResult, path: Path) -> None:
    """Writes the result's page, replacing the file."""
    # Imported here: the terminal's tables need no templates.
    from offpath.profiling.core.facts import (
        describe_host,
        describe_settings,
        describe_versions,
        describe_workload,
        format_time,
    )
    from offpath.profiling.report.old_page import (
        Section,
        join,
        render_page,
        table,
        write_html,
    )

    figures = summarise_tradeoff(result)
    sections = [
        Section(
            KNOBS[knob][0].upper() + KNOBS[knob][1:],
            join(make_charts(result, figures, knob))
            + table(
                [KNOBS[knob], *list_headers(result)],
                list_knob_cells(result, figures, knob),
            )
            + table(
                ["clients", KNOBS[knob], "lowest req/s", "highest req/s"],
                list_spread_cells(figures, knob),
                caption="Between the rounds",
            ),
            f"The other settings are the preset's: {result.reference}.",
        )
        for knob in result.knobs
    ]
    page = render_page(
        "Max batch delay, batch size, workers: how they trade",
        sections,
        command=result.command,
        facts={
            "taken": format_time(result.started_at),
            "host": describe_host(result.host),
            "versions": describe_versions(result.host),
            "settings": describe_settings(result.settings),
            "photographs": describe_workload(result.workload),
        },
        warnings=list_tradeoff_doubts(result, figures),
    )
    write_html(page, path)


def make_charts(
    result: TradeoffResult, figures: Sequence[TradeoffFigure], knob: str
) -> list[Any]:
    """Requests a second, and p50 and p95, against the knob; a line a number of clients."""
    from offpath.profiling.report.old_page import Series, line_chart

    def lines(name: str, figure_of: Callable[[TradeoffFigure], float]) -> list[Series]:
        return [
            Series(
                f"{name_clients(clients)}{name}",
                [(f.value, figure_of(f)) for f in select_line(figures, knob, clients)],
            )
            for clients in list_clients(result)
        ]

    label = KNOBS[knob]
    latencies = lines(", p50", lambda f: f.summary.p50_ms)
    latencies += lines(", p95", lambda f: f.summary.p95_ms)
    return [
        line_chart(
            lines("", lambda f: f.summary.rate),
            label,
            "requests a second",
            title=f"Requests a second against {label}",
            log_x=True,
        ),
        line_chart(
            latencies,
            label,
            "ms",
            title=f"Latency against {label}",
            log_x=True,
            log_y=True,
        ),
    ]


def name_clients(clients: int) -> str:
    """1 client, 4 clients."""
    return f"{clients} client" + ("s" if clients > 1 else "")


def list_spread_cells(figures: Sequence[TradeoffFigure], knob: str) -> list[list[str]]:
    """The rounds' extremes."""
    return [
        [
            str(figure.clients),
            str(figure.value),
            format_figure(figure.summary.rate_low),
            format_figure(figure.summary.rate_high),
        ]
        for figure in sorted(figures, key=lambda f: f.clients)
        if figure.knob == knob
    ]


def save_tradeoff_plot(result: TradeoffResult, path: Path) -> None:
    """Writes an SVG or PNG: a column a knob, rates above latencies.

    Raises:
        ExpectedError: another suffix, or matplotlib is missing.
    """
    with plotting(path):
        draw_tradeoff(result, path)


def draw_tradeoff(result: TradeoffResult, path: Path) -> None:
    """All knobs on the same scales, one colour a number of clients; the preset's value dashed."""
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    figures = summarise_tradeoff(result)
    columns = len(result.knobs)
    figure, panels = pyplot.subplots(
        2, columns, figsize=(4.4 * columns, 6.4), squeeze=False, sharey="row"
    )
    for column, knob in enumerate(result.knobs):
        upper, lower = panels[0][column], panels[1][column]
        for clients, colour in zip(list_clients(result), cycle(COLOURS)):
            line = select_line(figures, knob, clients)
            draw_line(upper, line, lambda s: s.rate, colour, "-", name_clients(clients))
            draw_line(lower, line, lambda s: s.p50_ms, colour, "-")
            draw_line(lower, line, lambda s: s.p95_ms, colour, ":")
        lower.set_xlabel(KNOBS[knob], color=TEXT)
        lower.set_yscale("log")
        lower.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        for panel in (upper, lower):
            style_knob(panel, result, knob)
        lower.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    panels[0][0].set_title("requests a second", color=TEXT, fontsize=11, loc="left")
    title = "p50 and p95 (dotted), ms"
    panels[1][0].set_title(title, color=TEXT, fontsize=11, loc="left")
    panels[0][0].set_ylim(bottom=0)
    place_legend(figure, panels[0][0])
    write_figure(figure, path)


def draw_line(
    panel: Any,
    line: Sequence[TradeoffFigure],
    figure_of: Callable[[Any], float],
    colour: str,
    style: str,
    label: str | None = None,
) -> None:
    """One number of clients."""
    panel.plot(
        [figure.value for figure in line],
        [figure_of(figure.summary) for figure in line],
        style,
        color=colour,
        marker="o",
        markersize=3,
        label=label,
    )


def style_knob(panel: Any, result: TradeoffResult, knob: str) -> None:
    """The knob's values as ticks, the preset's as a dashed line."""
    values = result.knobs[knob]
    panel.set_xscale("log", base=2)
    panel.set_xticks(values, [str(value) for value in values])
    panel.minorticks_off()
    panel.axvline(
        getattr(result.reference, knob), color=TEXT, linestyle="--", linewidth=0.8
    )
    style_panel(panel, "both")
