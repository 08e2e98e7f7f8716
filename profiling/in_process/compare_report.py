"""Renders a comparison of two profiles: for the terminal, as a page, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from offpath.profiling.core.facts import describe_host, describe_workload, format_time
from offpath.profiling.core.figures import format_ms, format_ratio
from offpath.profiling.in_process.profile_compare import ComparedRow, Comparison
from offpath.profiling.in_process.profile_result import ProfileResult
from offpath.profiling.in_process.profile_summary import TOTAL
from offpath.profiling.report.old_page import (
    Section,
    StackedBar,
    assign_colours,
    legend,
    render_page,
    stacked_bars,
    table,
    write_html,
)

UNITS = {
    "account": "ms of a client's mean latency",
    "stages": "ms an image",
    "buckets": "own ms an image",
}


def print_comparison(
    comparisons: Sequence[Comparison], notes: Sequence[str], console: Console
) -> None:
    """Prints a table per handler and per kind of part, then what else differs."""
    for pair in comparisons:
        for what, rows in pair.tables.items():
            console.print(make_table(pair, what, rows))
    for note in notes:
        console.print(f"also differs: {escape(note)}", highlight=False)


def make_table(pair: Comparison, what: str, rows: Sequence[ComparedRow]) -> Table:
    """One table; the ratio is the second over the first."""
    heading = Table(
        title=escape(f"{what}, {UNITS[what]}"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    heading.add_column("", overflow="fold")
    for name in (*name_columns(pair), "B / A"):
        heading.add_column(escape(name), justify="right")
    for row in rows:
        if row.name == TOTAL:
            heading.add_section()
        heading.add_row(*map(escape, list_cells(row)))
    return heading


def name_columns(pair: Comparison) -> tuple[str, str]:
    """A and B with their handlers' names."""
    return f"A {pair.first}", f"B {pair.second}"


def list_cells(row: ComparedRow) -> list[str]:
    """The row as text; empty where one result lacks it."""
    values = (row.first_ms, row.second_ms)
    return [
        row.name,
        *("" if value is None else format_ms(value / 1e3) for value in values),
        "" if row.ratio is None else format_ratio(row.ratio),
    ]


def write_comparison_page(
    comparisons: Sequence[Comparison],
    results: tuple[ProfileResult, ProfileResult],
    notes: Sequence[str],
    path: Path,
) -> None:
    """Writes the comparison as one self-contained page."""
    facts = {
        f"{letter}: {what}": text
        for letter, result in zip("AB", results)
        for what, text in {
            "command": result.command,
            "taken": format_time(result.started_at),
            "host": describe_host(result.host),
            "images": describe_workload(result.workload),
        }.items()
        if text
    }
    sections = [
        make_section(pair, what, rows)
        for pair in comparisons
        for what, rows in pair.tables.items()
    ]
    warnings = [f"also differs: {note}" for note in notes]
    page = render_page("Two profiles", sections, facts=facts, warnings=warnings)
    write_html(page, path)


def make_section(pair: Comparison, what: str, rows: Sequence[ComparedRow]) -> Section:
    """Both bars on one scale, then the figures."""
    first, second = name_columns(pair)
    whole = rows[-1]
    bars = [
        make_bar(first, {row.name: row.first_ms for row in rows[:-1]}, whole.first_ms),
        make_bar(
            second, {row.name: row.second_ms for row in rows[:-1]}, whole.second_ms
        ),
    ]
    colours = assign_colours(row.name for row in rows[:-1])
    label = "; ".join(f"{bar.label}: {bar.text}" for bar in bars)
    body: Markup = legend(colours) + stacked_bars(bars, colours, label=label)
    cells = [list_cells(row) for row in rows]
    body += table(["", first, second, "B / A"], cells, total_row=True)
    return Section(
        f"{what.capitalize()}: {first}, {second}", body, f"In {UNITS[what]}."
    )


def make_bar(
    name: str, parts: Mapping[str, float | None], whole: float | None
) -> StackedBar:
    """One side as a bar."""
    values = [(part, ms or 0.0) for part, ms in parts.items()]
    return StackedBar(name, values, f"{format_ms((whole or 0.0) / 1e3)} ms")


def to_data(comparisons: Sequence[Comparison], notes: Sequence[str]) -> dict[str, Any]:
    """The comparison as plain data for JSON; milliseconds, ratios of the second over the first."""
    return {
        "comparisons": [
            {
                "first": pair.first,
                "second": pair.second,
                **{
                    what: [
                        {
                            "name": row.name,
                            "first_ms": row.first_ms,
                            "second_ms": row.second_ms,
                            "ratio": row.ratio,
                        }
                        for row in rows
                    ]
                    for what, rows in pair.tables.items()
                },
            }
            for pair in comparisons
        ],
        "notes": list(notes),
    }
