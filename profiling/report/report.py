"""Renders a benchmark's result for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from offpath.profiling.core.result import NOISY_CORES, BenchResult
from offpath.profiling.core.summary import (
    PERCENTILES,
    Row,
    combined_limits,
    limit_rate,
    summarise,
)

NOISY_SPREAD = 0.15
# Fewer good replies in a window, and its percentiles are a handful of batches.
FEW_REPLIES = 100
# Group of processes -> its column.
CPU_GROUPS = {"frontend": "front end", "workers": "workers", "generator": "load"}


def print_report(result: BenchResult, baseline: str | None, console: Console) -> None:
    """Prints three tables per workload, who is missing, then what makes the figures doubtful."""
    rows = summarise(result, baseline)
    for workload, facts in result.workloads.items():
        mean_kb = facts["mean_bytes"] / 1000
        title = f"{workload}: {facts['count']} photographs, {mean_kb:,.0f} kB mean"
        selected = [row for row in rows if row.workload == workload]
        console.print(make_speed_table(title, selected, baseline))
        console.print(make_latency_table(selected))
        console.print(make_cost_table(selected))
        console.print(format_limits(result, workload), highlight=False)
        console.print()
    for name, reason in result.not_run.items():
        console.print(f"[yellow]not run: {name}:[/] {escape(reason)}", highlight=False)
    for failure in result.failures:
        where = f"{failure.server}, round {failure.round + 1}"
        console.print(
            f"[red]left out: {where}:[/] {escape(failure.reason)}", highlight=False
        )
    for warning in [*find_noisy_limits(result), *find_warnings(rows)]:
        console.print(f"[yellow]{escape(warning)}[/]", highlight=False)


def make_speed_table(title: str, rows: Sequence[Row], baseline: str | None) -> Table:
    """Rates, their ratio to the baseline and their share of the limits."""
    if baseline:
        title += f"; x: to {baseline}"
    table = new_table(title, "req/s", "range", "x", "% decode", "% limit", "failed")
    for row in rows:
        table.add_row(
            row.server,
            f"{row.rate:.1f}",
            f"{row.rate_low:.1f}-{row.rate_high:.1f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            format_share(row.decode_share),
            format_share(row.limit_share),
            format_failures(row.failures),
        )
    return table


def make_latency_table(rows: Sequence[Row]) -> Table:
    """Latencies under load, and of the first requests after a start."""
    table = new_table(
        "ms under load | start: s to the first 200, ms of the first and the next",
        *(f"p{percent:g}" for percent in PERCENTILES),
        *("s", "first", "next"),
    )
    for row in rows:
        starts = (row.first_ms, row.steady_ms)
        table.add_row(
            row.server,
            *(f"{row.latency_ms[percent]:.0f}" for percent in PERCENTILES),
            f"{row.ready_s:.1f}",
            *("" if ms is None else f"{ms:.0f}" for ms in starts),
        )
    return table


def make_cost_table(rows: Sequence[Row]) -> Table:
    """CPU milliseconds a reply by process group, memory, and the GPU where there is one."""
    has_gpu = any(row.gpu for row in rows)
    table = new_table(
        "CPU ms a reply | memory MB",
        *CPU_GROUPS.values(),
        *("CPU", "RSS", "PSS"),
        *(("GPU %", "GPU") if has_gpu else ()),
    )
    for row in rows:
        cpu_ms = [row.cpu_ms.get(group, 0) for group in CPU_GROUPS]
        gpu = (
            f"{100 * row.gpu.get('utilisation', math.nan):.0f}",
            f"{row.gpu.get('memory_bytes', math.nan) / 1e6:,.0f}",
        )
        table.add_row(
            row.server,
            *(f"{ms:.2f}" for ms in [*cpu_ms, sum(cpu_ms)]),
            f"{sum(row.rss_bytes.values()) / 1e6:,.0f}",
            format_memory(row.pss_bytes),
            *(gpu if has_gpu else ()),
        )
    return table


def format_memory(by_group: Mapping[str, float]) -> str:
    """Megabytes of all groups, nothing where it was not measured."""
    return f"{sum(by_group.values()) / 1e6:,.0f}" if by_group else ""


def new_table(title: str, *columns: str, first: str = "server") -> Table:
    """A table with a name at the left and figures beside it; fits 80 columns."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1)
    )
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=column != "failed")
    return table


def format_share(share: float | None) -> str:
    """Percent of a limit."""
    return "" if share is None else f"{100 * share:.0f}"


def format_failures(failures: Mapping[str, int]) -> str:
    """Count by status, 0 for none."""
    return ", ".join(f"{n} x {status}" for status, n in failures.items()) or "0"


def format_limits(result: BenchResult, workload: str) -> str:
    """The limits' rates in one line."""
    decode, forward = limit_rate(result, workload), limit_rate(result, None)
    both = combined_limits(result, workload)
    if decode is None or forward is None or None not in both:
        return "limits: not measured"
    return (
        f"images/s that {result.host['cores']} cores allow: decode alone {decode:.1f},"
        f" forward alone {forward:.1f}, both (the limit) {both[None]:.1f}"
        + "".join(
            f"; engine {engine}: {limit_rate(result, None, engine):.1f} and {rate:.1f}"
            for engine, rate in both.items()
            if engine is not None
        )
    )


def find_noisy_limits(result: BenchResult) -> list[str]:
    """Limits during which something else took the cores."""
    cores = result.host["cores"]
    return [
        f"noise: the {limit.kind} limit of round {limit.round + 1} got only"
        f" {limit.cpu_s / limit.elapsed_s:.2f} of {cores} cores; stop what else runs"
        for limit in result.limits
        if limit.cpu_s < (cores - NOISY_CORES) * limit.elapsed_s
    ]


def find_warnings(rows: Sequence[Row]) -> list[str]:
    """What makes the figures doubtful, each with its cure."""
    warnings = []
    for row in rows:
        where = f"{row.server} on {row.workload}"
        if row.other_cores > NOISY_CORES:
            warnings.append(
                f"noise: {row.other_cores:.2f} cores were busy with something else during {where};"
                " stop it and run again"
            )
        if row.rate_high - row.rate_low > NOISY_SPREAD * row.rate:
            warnings.append(
                f"spread: the rounds of {where} differ by"
                f" {100 * (row.rate_high - row.rate_low) / row.rate:.0f} %;"
                " more --rounds or longer --seconds narrow it"
            )
        if row.fewest_replies < FEW_REPLIES:
            warnings.append(
                f"few replies: a round of {where} had {row.fewest_replies}, its percentiles say"
                " little; longer --seconds, or --requests"
            )
        if row.failures:
            warnings.append(
                f"failures: {where}: {format_failures(row.failures)} of {row.replies}"
            )
    return warnings
