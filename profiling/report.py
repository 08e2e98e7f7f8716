"""Renders a benchmark's result for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from profiling.result import BenchResult
from profiling.summary import PERCENTILES, Row, combined_limit, limit_rate, summarise

# More than this many cores busy with something else, and the figures are noisy.
NOISY_CORES = 0.1
NOISY_SPREAD = 0.15


def print_report(result: BenchResult, baseline: str | None, console: Console) -> None:
    """Prints one table per workload, then what makes the figures doubtful."""
    rows = summarise(result, baseline)
    for workload, facts in result.workloads.items():
        mean_kb = facts["mean_bytes"] / 1000
        title = f"{workload}: {facts['count']} photographs, {mean_kb:,.0f} kB mean"
        console.print(make_table(title, [r for r in rows if r.workload == workload], baseline))
        console.print(format_limits(result, workload))
    for warning in find_warnings(rows):
        console.print(f"[yellow]{warning}[/]")


def make_table(title: str, rows: Sequence[Row], baseline: str | None) -> Table:
    """Rates, ratios, latencies and CPU of the servers on one workload."""
    table = Table(title=title, title_justify="left")
    table.add_column("server")
    for column in (
        "req/s",
        "spread",
        f"x {baseline}" if baseline else "x",
        "% of decode",
        "% of both",
        *(f"p{percent} ms" for percent in PERCENTILES),
        "failed",
        "frontend ms",
        "workers ms",
        "load ms",
        "RSS MB",
        "ready s",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row.server, *format_row(row))
    return table


def format_row(row: Row) -> list[str]:
    """A row's cells after the name."""
    return [
        f"{row.rate:.1f}",
        f"{row.rate_low:.1f}-{row.rate_high:.1f}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        format_share(row.decode_share),
        format_share(row.limit_share),
        *(f"{row.latency_ms[percent]:.0f}" for percent in PERCENTILES),
        format_failures(row.failures),
        *(f"{row.cpu_ms.get(group, 0):.2f}" for group in ("frontend", "workers", "generator")),
        f"{sum(row.rss_bytes.values()) / 1e6:,.0f}",
        f"{row.ready_s:.1f}",
    ]


def format_share(share: float | None) -> str:
    """Percent of a limit."""
    return "" if share is None else f"{100 * share:.0f}"


def format_failures(failures: Mapping[str, int]) -> str:
    """Count by status, 0 for none."""
    return ", ".join(f"{n} x {status}" for status, n in failures.items()) or "0"


def format_limits(result: BenchResult, workload: str) -> str:
    """The limits' rates in one line."""
    decode, forward = limit_rate(result, workload), limit_rate(result, None)
    both = combined_limit(result, workload)
    if decode is None or forward is None or both is None:
        return "limits: not measured"
    return (
        f"limits of {result.host['cores']} cores, images/s: decode alone {decode:.1f},"
        f" forward alone {forward:.1f}, both {both:.1f}"
    )


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
        if row.failures:
            warnings.append(f"failures: {where}: {format_failures(row.failures)} of {row.replies}")
    return warnings
