"""Prints what a soak saw."""

from __future__ import annotations

from rich.console import Console

from offpath.profiling.experiments.soak import (
    SETTLED_AFTER_S,
    SoakResult,
    memory_slope_bytes_per_min,
)


def print_soak(result: SoakResult, console: Console) -> None:
    """Prints statuses, memory and problems."""
    total = sum(result.statuses.values())
    console.print(
        f"{total:,} replies in {result.elapsed_s / 60:.1f} min"
        f" ({total / result.elapsed_s:.0f}/s); {result.good_items} good items in turn with"
        f" {len(result.bad_items)} bad ones ({', '.join(result.bad_items)})"
    )
    for status, count in sorted(result.statuses.items()):
        console.print(f"  {status}: {count:,}")
    console.print(format_memory(result))
    for problem in result.problems or ["no 5xx, no lost reply, no restart"]:
        console.print(problem)


def format_memory(result: SoakResult) -> str:
    """The workers' memory after the first minute, at the end, and its slope."""
    settled = [sample for sample in result.memory if sample.at_s >= SETTLED_AFTER_S]
    if not settled:
        return "memory: under a minute of load tells nothing"
    first, last = settled[0], settled[-1]
    slope = memory_slope_bytes_per_min(result.memory) / 1e6
    return (
        f"workers' memory: {first.total_bytes / 1e6:,.1f} MB after {first.at_s:.0f} s,"
        f" {last.total_bytes / 1e6:,.1f} MB after {last.at_s:.0f} s, slope {slope:+.3f} MB/min"
    )
