"""Renders a sweep: tables for the terminal, and its page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from offpath.profiling.core.summary import percentile
from offpath.profiling.experiments.sweep_result import Step, SweepResult
from offpath.profiling.report.report import FEW_REPLIES, format_failures, new_table


def print_sweep(result: SweepResult, console: Console) -> None:
    """One table per server, then what is missing."""
    for server in result.servers:
        steps = [step for step in result.steps if step.server == server]
        if not steps:
            continue
        table = new_table(server, "req/s", "p50 ms", "p95 ms", "failed", first="users")
        for step in steps:
            table.add_row(str(step.users), *format_step(step))
        console.print(table)
    for line in list_doubts(result):
        console.print(f"[yellow]{escape(line)}[/]", highlight=False)


def format_step(step: Step) -> tuple[str, str, str, str]:
    """Rate, p50, p95, failures."""
    p50, p95 = (percentile(step.latencies_ms, percent) for percent in (50, 95))
    return (
        f"{step.rate:.1f}",
        f"{p50:.0f}",
        f"{p95:.0f}",
        format_failures(step.failed),
    )


def list_doubts(result: SweepResult) -> list[str]:
    """What is missing and why, and which steps had few replies."""
    few = [
        f"{step.server} at {step.users} ({len(step.latencies_ms)})"
        for step in result.steps
        if len(step.latencies_ms) < FEW_REPLIES
    ]
    said = "fewer than {} good replies, longer --seconds would say more: {}"
    return [
        *(f"not run: {name}: {reason}" for name, reason in result.not_run.items()),
        *(
            f"failed: {failure.server} at {failure.users} users: {failure.reason}"
            for failure in result.failures
        ),
        *([said.format(FEW_REPLIES, ", ".join(few))] if few else []),
    ]


def write_sweep_page(result: SweepResult, path: Path) -> None:
    """Writes the result's page, replacing the file."""
    # Imported here: the terminal's tables need no templates.
    from offpath.profiling.core.facts import (
        describe_host,
        describe_settings,
        describe_versions,
        describe_workload,
        format_time,
    )
    from offpath.profiling.report.bench_page import SweepPoint, make_sweep_sections
    from offpath.profiling.report.old_page import (
        Section,
        render_page,
        table,
        write_html,
    )

    points = [
        SweepPoint(
            step.server,
            step.users,
            step.rate,
            percentile(step.latencies_ms, 50),
            percentile(step.latencies_ms, 95),
            sum(step.failed.values()),
        )
        for step in result.steps
    ]
    rows = [[step.server, str(step.users), *format_step(step)] for step in result.steps]
    headers = ["server", "users", "req/s", "p50 ms", "p95 ms", "failed"]
    scenario = result.settings.get("scenario", "")
    page = render_page(
        "Servers against virtual users",
        [
            *make_sweep_sections(points, f"Scenario {scenario}"),
            Section("Steps", table(headers, rows)),
        ],
        command=result.command,
        facts={
            "taken": format_time(result.started_at),
            "host": describe_host(result.host),
            "versions": describe_versions(result.host),
            "settings": describe_settings(result.settings),
            "photographs": describe_workload(result.workload),
        },
        warnings=list_doubts(result),
    )
    write_html(page, path)
