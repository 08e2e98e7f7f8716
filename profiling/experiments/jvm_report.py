"""The front end's settings side by side, as Markdown: the tables in docs/jvm.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from offpath.profiling.experiments.jvm import COLUMNS, WORKLOADS, JvmResult

DECIMALS = {"Java ms/req": 2, "Java / workers": 3, "failed": 0}


def format_table(result: JvmResult) -> str:
    """Medians of the rounds, as Markdown; ratios to the first variant in the same round."""
    lines = []
    for workload in WORKLOADS:
        lines += [f"\n| {workload} | ratio | range | {' | '.join(COLUMNS)} |"]
        lines += ["|---" * (len(COLUMNS) + 3) + "|"]
        first: dict[int, float] = {}
        for name in result.variants:
            rounds = select(result, name, workload)
            if not rounds:
                continue
            rates = {number: figures["req/s"] for number, figures in rounds.items()}
            first = first or rates
            ratios = [rate / first[n] for n, rate in rates.items() if n in first]
            ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
            spread = f"{min(rates.values()):.0f}-{max(rates.values()):.0f}"
            cells = [format_cell(column, rounds.values()) for column in COLUMNS]
            lines.append(f"| {name} | {ratio} | {spread} | {' | '.join(cells)} |")
    return "\n".join(lines)


def format_cell(column: str, rounds: Iterable[Mapping[str, float]]) -> str:
    """The median; empty where a result is from before there was such a column."""
    values = [figures[column] for figures in rounds if column in figures]
    if not values:
        return ""
    decimals = DECIMALS.get(column, 1)
    return f"{statistics.median(values):.{decimals}f}"


def select(
    result: JvmResult, variant: str, workload: str
) -> dict[int, Mapping[str, float]]:
    """Round -> the figures of one variant."""
    return {
        m.round: m.figures
        for m in result.measurements
        if m.variant == variant and m.workload == workload
    }
