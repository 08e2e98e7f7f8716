"""Renders a calibration of the load generator for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from profiling.calibration import STALL_S, Calibration
from profiling.report import new_table


def print_calibration(result: Calibration, console: Console) -> None:
    """Prints three tables, then what is wrong."""
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
    columns = list(result.delays[0].sent_ms)
    table = new_table(
        "known delays, each tenth failed: ms by the generator / by the server",
        *(*columns, "failures"),
        first="locust",
    )
    for delay in result.delays:
        table.add_row(
            f"{delay.loop} loop",
            *(f"{delay.sent_ms[c]:.1f}/{delay.held_ms[c]:.1f}" for c in columns),
            f"{delay.failures}/{delay.expected_failures}",
        )
    console.print(table)
    stalls = ", ".join(
        f"{loop} loop {ms:,.0f} ms" for loop, ms in result.stall_p99_ms.items()
    )
    console.print(
        f"p99 with one stall of {STALL_S:g} s in 10 s: {stalls}", highlight=False
    )
    for problem in result.problems:
        console.print(f"[yellow]{escape(problem)}[/]", highlight=False)
