"""Renders a search for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from offpath.profiling.core.result import NOISY_CORES
from offpath.profiling.experiments.tuning.choice import (
    Summary,
    Verdict,
    rank,
    summarise_finals,
    summarise_trials,
)
from offpath.profiling.experiments.tuning.result import TuneResult
from offpath.profiling.experiments.tuning.space import Candidate
from offpath.profiling.report.charts import Dot
from offpath.profiling.report.line_charts import pareto_front

COLUMNS = (
    *("batch", "delay", "workers", "threads"),
    *("req/s", "range", "p50", "p95", "fail"),
)
ROWS_SHOWN = 15


def print_tuning(
    result: TuneResult, p95_ms: float, verdict: Verdict | None, console: Console
) -> None:
    """Prints the candidates, the fresh rounds and the verdict."""
    console.print(make_trial_table(result, p95_ms))
    if result.finals:
        console.print(make_final_table(result))
    for warning in find_warnings(result):
        console.print(f"[yellow]{warning}[/]", highlight=False, soft_wrap=True)
    # Without a winner the text is the command's error.
    if verdict is not None and verdict.winner is not None:
        console.print(verdict.text, highlight=False, soft_wrap=True)


def format_outcome(
    result: TuneResult, verdict: Verdict, p95_ms: float, preset: str
) -> str:
    """What to do with a winner, in the fresh rounds' figures; `preset` is the file with it.

    Raises:
        ValueError: nothing won.
    """
    if verdict.winner is None:
        raise ValueError("nothing won")
    summary = summarise_finals(result.finals)[verdict.winner]
    figures = (
        f"{summary.rate:.1f} req/s ({summary.rate_low:.1f} to {summary.rate_high:.1f} in"
        f" {1 + max(final.round for final in result.finals)} fresh rounds),"
        f" p95 {summary.p95_ms:.0f} ms, bound {p95_ms:g} ms"
    )
    if verdict.is_better:
        return (
            f"winner: {verdict.winner}: {figures}; build with:"
            f" offpath archive --preset {preset}"
        )
    return (
        f"keep the preset: {verdict.winner}: {figures}; nothing to rebuild, {preset} has it with"
        " its origin"
    )


def make_trial_table(result: TuneResult, p95_ms: float) -> Table:
    """Best first; what is beyond the bound comes after everything within."""
    ranked = rank(summarise_trials(result.trials), p95_ms)
    left_out = len(ranked) - ROWS_SHOWN
    rest = f", {left_out} more in the study" if left_out > 0 else ""
    table = new_table(
        f"{len(ranked)} candidates (times in ms), p95 within {p95_ms:g} ms first{rest}",
        *COLUMNS,
        "",
    )
    front = front_candidates(ranked)
    for summary in ranked[:ROWS_SHOWN]:
        notes = list_notes(summary, result.reference, front, p95_ms)
        table.add_row(*format_cells(summary), ", ".join(notes))
    return table


def make_final_table(result: TuneResult) -> Table:
    """The fresh rounds."""
    by_candidate = summarise_finals(result.finals)
    rounds = 1 + max(final.round for final in result.finals)
    table = new_table(f"fresh rounds, {rounds} each in turn", *COLUMNS, "")
    for candidate, summary in by_candidate.items():
        note = "preset" if candidate == result.reference else ""
        table.add_row(*format_cells(summary), note)
    return table


def new_table(title: str, *columns: str) -> Table:
    """Figures right, notes left."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1)
    )
    for column in columns:
        justify: Any = "right" if column else "left"
        table.add_column(column, justify=justify, no_wrap=bool(column))
    return table


def format_cells(summary: Summary) -> list[str]:
    """One row's figures, in the order of COLUMNS."""
    candidate = summary.candidate
    return [
        str(candidate.batch_size),
        str(candidate.max_batch_delay_ms),
        str(candidate.workers),
        str(candidate.threads or "-"),
        f"{summary.rate:.1f}",
        f"{summary.rate_low:.0f}-{summary.rate_high:.0f}",
        format_ms(summary.p50_ms),
        format_ms(summary.p95_ms),
        str(summary.failures),
    ]


def format_ms(value: float) -> str:
    """Milliseconds; nothing without a reply."""
    return "" if math.isnan(value) else f"{value:.0f}"


def list_notes(
    summary: Summary, reference: Candidate, front: set[Candidate], p95_ms: float
) -> list[str]:
    """What sets a row apart."""
    notes = []
    if summary.candidate == reference:
        notes.append("preset")
    if summary.error:
        notes.append("no start")
    elif not summary.is_within(p95_ms):
        notes.append("failed" if summary.failures else "slow")
    if summary.candidate in front:
        notes.append("front")
    return notes


def make_dots(summaries: Sequence[Summary], strong: Candidate | None) -> list[Dot]:
    """Points of the throughput/latency plot: those that answered everything."""
    return [
        Dot(
            s.rate,
            s.p95_ms,
            f"{s.candidate}: {s.rate:.0f} req/s, p95 {s.p95_ms:.0f} ms",
            strong=s.candidate == strong,
        )
        for s in summaries
        if not s.failures and not s.error and not math.isnan(s.p95_ms)
    ]


def front_candidates(summaries: Sequence[Summary]) -> set[Candidate]:
    """Candidates that no other beats in both rate and p95."""
    front = {(dot.x, dot.y) for dot in pareto_front(make_dots(summaries, None))}
    return {s.candidate for s in summaries if (s.rate, s.p95_ms) in front}


def find_warnings(result: TuneResult) -> list[str]:
    """What makes the figures doubtful, each with its cure."""
    summaries = [
        *summarise_trials(result.trials),
        *summarise_finals(result.finals).values(),
    ]
    warnings = [f"{s.candidate} did not serve: {s.error}" for s in summaries if s.error]
    noisy = sum(s.other_cores > NOISY_CORES for s in summaries)
    if noisy:
        most = max(s.other_cores for s in summaries)
        warnings.append(
            f"noise: up to {most:.2f} cores were busy with something else, in {noisy} of"
            f" {len(summaries)} measurements; stop it and search again"
        )
    return warnings
