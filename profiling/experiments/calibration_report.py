"""Renders a calibration of the load generator for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from offpath.profiling.experiments.calibration import STALL_S, Calibration
from offpath.profiling.report.report import new_table


def print_calibration(result: Calibration, console: Console) -> None:
    """Prints two tables and the stall, then who is missing and what is wrong."""
    table = new_table(
        "a server that answers at once, 32 clients",
        *("photographs", "req/s", "CPU ms a request"),
        first="generator",
    )
    for one in result.instant:
        table.add_row(
            one.generator, one.workload, f"{one.rate:,.0f}", f"{one.cpu_ms:.3f}"
        )
    console.print(table)
    console.print(make_delay_table(result))
    stalls = ", ".join(
        f"{loop} loop {ms:,.0f} ms" for loop, ms in result.stall_p99_ms.items()
    )
    console.print(
        f"locust's p99 with one stall of {STALL_S:g} s in 10 s: {stalls}",
        highlight=False,
    )
    for name, reason in result.without.items():
        console.print(f"[yellow]without {name}:[/] {escape(reason)}", highlight=False)
    for problem in result.problems:
        console.print(f"[yellow]{escape(problem)}[/]", highlight=False)


def make_delay_table(result: Calibration) -> Table:
    """Percentiles and failures of each generator that ran."""
    columns = list(result.delays[0].sent_ms) if result.delays else []
    table = new_table(
        "known delays: ms by the generator / by the server; each tenth failed: counted / were",
        *("loop", *columns, "failed"),
        first="generator",
    )
    for delay in result.delays:
        counted = "ends" if delay.failures is None else str(delay.failures)
        table.add_row(
            delay.generator,
            delay.loop,
            *(f"{delay.sent_ms[c]:.1f}/{delay.held_ms[c]:.1f}" for c in columns),
            f"{counted}/{delay.expected_failures}",
        )
    return table
