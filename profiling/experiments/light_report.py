"""Renders a light-load result: tables for the terminal, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from offpath.profiling.core.figures import format_figure
from offpath.profiling.experiments.light_result import LightResult
from offpath.profiling.experiments.light_summary import (
    BOUND_MS,
    LightRow,
    find_doubts,
    pool,
    select,
    summarise_light,
)
from offpath.profiling.report.report import CPU_GROUPS, new_table

COLUMNS = ("p50", "p95", "alone p50", "p95", "overhead", "")
NOTE = "alone: decode, transform and forward in one process, one thread, no server"


def print_light(result: LightResult, console: Console) -> None:
    """Per workload the latencies beside the work alone, then the account of each server."""
    rows = summarise_light(result)
    for workload in result.workloads:
        chosen = [row for row in rows if row.workload == workload]
        if chosen:
            console.print(make_latency_table(f"{workload}, 1 client, ms", chosen))
            console.print(make_account_table(chosen))
    for row in rows:
        if row.stages:
            console.print(make_stage_table(row))
    console.print(NOTE, highlight=False)
    for doubt in find_doubts(rows):
        console.print(f"[yellow]{escape(doubt)}[/]", highlight=False)


def make_latency_table(title: str, rows: Sequence[LightRow]) -> Table:
    """Percentiles, and what each server adds between the medians."""
    table = new_table(title, *COLUMNS)
    for row in rows:
        table.add_row(row.server, *list_latencies(row))
    return table


def list_latencies(row: LightRow) -> list[str]:
    """A row's cells, in the order of COLUMNS."""
    figures = (
        *(row.p50_ms, row.p95_ms, row.alone_p50_ms, row.alone_p95_ms),
        row.overhead_ms,
    )
    return [*map(format_figure, figures), format_verdict(row)]


def format_verdict(row: LightRow) -> str:
    """Whether it adds no more than the bound."""
    word = "within" if row.is_within else "above"
    return f"{word} {BOUND_MS:g} ms"


def make_account_table(rows: Sequence[LightRow]) -> Table:
    """The parts of the median, one column a server; CPU below them."""
    table = new_table(
        "where the median goes, ms", *(row.server for row in rows), first="part"
    )
    for cells in list_account_cells(rows):
        table.add_row(*cells)
    table.add_section()
    for cells in list_cpu_cells(rows):
        table.add_row(*cells)
    return table


def list_account_cells(rows: Sequence[LightRow]) -> list[list[str]]:
    """Part by part; they add up to the medians."""
    parts = dict.fromkeys(name for row in rows for name, _ in row.parts)
    accounts = [dict(row.parts) for row in rows]
    return [
        [name, *(format_part(account.get(name)) for account in accounts)]
        for name in order_parts(parts, rows)
    ]


def list_cpu_cells(rows: Sequence[LightRow]) -> list[list[str]]:
    """CPU time a request, by process group; apart from the account, which is wall time."""
    groups = dict.fromkeys(group for row in rows for group in row.cpu_ms)
    return [
        [
            f"CPU time, {CPU_GROUPS.get(group, group)}",
            *(format_part(row.cpu_ms.get(group)) for row in rows),
        ]
        for group in groups
    ]


def order_parts(parts: dict[str, None], rows: Sequence[LightRow]) -> list[str]:
    """As the longest account has them, the others' own parts after them."""
    longest = max((row.parts for row in rows), key=len)
    return list(dict.fromkeys([*(name for name, _ in longest), *parts]))


def format_part(value: float | None) -> str:
    """Two decimals: parts are added up by eye."""
    return "" if value is None else f"{value:.2f}"


def make_stage_table(row: LightRow) -> Table:
    """The handler's stages alone and in the server."""
    title = f"{row.workload}, {row.server}: the handler's stages, ms"
    table = new_table(title, "alone", "in the server", first="stage")
    for cells in list_stage_cells(row):
        table.add_row(*cells)
    return table


def list_stage_cells(row: LightRow) -> list[list[str]]:
    """Stage, alone, in the server."""
    return [
        [stage, format_part(alone), format_part(served)]
        for stage, alone, served in row.stages
    ]


def write_light_page(result: LightResult, path: Path) -> None:
    """Writes the result's page, replacing the file."""
    # Imported here: the terminal's tables need no templates.
    from offpath.profiling.core.facts import (
        describe_host,
        describe_settings,
        describe_versions,
        describe_workload,
        format_time,
    )
    from offpath.profiling.report.old_page import Section, render_page, write_html

    rows = summarise_light(result)
    sections = [
        Section(
            f"{workload}: a lone request",
            make_page_body(result, [r for r in rows if r.workload == workload]),
            f"Medians; {NOTE}.",
        )
        for workload in result.workloads
        if any(row.workload == workload for row in rows)
    ]
    page = render_page(
        "Light load: one client, one request at a time",
        sections,
        command=result.command,
        facts={
            "taken": format_time(result.started_at),
            "host": describe_host(result.host),
            "versions": describe_versions(result.host),
            "settings": describe_settings(result.settings),
            **{name: describe_workload(it) for name, it in result.workloads.items()},
        },
        details={n: describe_settings(it) for n, it in result.servers.items()},
        warnings=find_doubts(rows),
    )
    write_html(page, path)


def make_page_body(result: LightResult, rows: Sequence[LightRow]) -> Markup:
    """The accounts as bars, the tables, the latencies as histograms."""
    from offpath.profiling.report.old_page import (
        StackedBar,
        assign_colours,
        histograms,
        join,
        legend,
        stacked_bars,
        table,
    )

    bars = [
        StackedBar(row.server, row.parts, f"{format_figure(row.p50_ms)} ms")
        for row in rows
    ]
    colours = assign_colours(name for row in rows for name, _ in row.parts)
    label = "; ".join(f"{bar.label}: {bar.text}" for bar in bars)
    body = legend(colours) + stacked_bars(bars, colours, label=label)
    body += table(["server", *COLUMNS], [[r.server, *list_latencies(r)] for r in rows])
    names = [row.server for row in rows]
    account = [*list_account_cells(rows), *list_cpu_cells(rows)]
    body += table(["part", *names], account, caption="ms of the median; CPU apart")
    for row in rows:
        if row.stages:
            caption = f"{row.server}: the handler's stages, ms"
            cells = list_stage_cells(row)
            body += table(["stage", "alone", "in the server"], cells, caption=caption)
    latencies = {
        row.server: pool(select(result, row.workload, row.server)) for row in rows
    }
    return body + join(histograms(latencies, "ms", "requests"))
