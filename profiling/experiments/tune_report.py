"""What a search shows and leaves: fresh rounds, candidates, their front; the winner as a preset."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offpath.archive.model_config import format_model_config, make_model_config
from offpath.handler.errors import WrongOption
from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.run import Run
from offpath.profiling.experiments.tune_choice import (
    Outcome,
    Verdict,
    find_bound,
    judge,
    rank,
    read_finals,
    read_trials,
    select_rounds,
)
from offpath.profiling.experiments.tune_experiment import MIN_REPLIES
from offpath.profiling.report.charts import Bar, BarChart
from offpath.profiling.report.document import Document, Section, Table
from offpath.profiling.report.measured import describe_run
from offpath.profiling.servers.registering import Setting

COLUMNS = (
    *("", "batch", "delay", "workers", "threads"),
    *("req/s", "range", "p50", "p95", "failed"),
)
ROWS_SHOWN = 15


def bound_of(run: Run) -> float:
    """The p95 that a search was judged by, in ms."""
    asked_ms: float | None = run.details["p95_ms"]
    return find_bound(asked_ms, read_trials(run), reference_of(run))


def reference_of(run: Run) -> Setting:
    """The preset's setting."""
    return Setting(**run.details["reference"])


def verdict_of(run: Run) -> Verdict | None:
    """Of the fresh rounds; None where there were none."""
    finals = read_finals(run)
    return judge(finals, reference_of(run), bound_of(run)) if finals else None


def document_of(run: Run, _: str | None = None) -> Document:
    """Everything that is shown of a search."""
    verdict, bound_ms, reference = verdict_of(run), bound_of(run), reference_of(run)
    ranked = rank(read_trials(run).values(), bound_ms)
    chart = BarChart(
        "Candidates",
        "requests per second",
        [
            Bar(
                str(one.setting),
                one.rate,
                f"{one.rate:.0f}, p95 {one.p95_ms:.0f} ms",
                verdict is not None and one.setting == verdict.winner,
                one.rate_low,
                one.rate_high,
            )
            for one in ranked[:ROWS_SHOWN]
            if not one.failures and not math.isnan(one.p95_ms)
        ],
    )
    rows = [format_row(list_notes(one, reference, bound_ms), one) for one in ranked]
    sections = [
        Section(
            "Candidates",
            [chart, *make_tables(rows, bound_ms)],
        )
    ]
    if verdict is not None:
        finals = [
            format_row("preset" if one.setting == reference else "", one.outcome)
            for one in read_finals(run)
        ]
        title = f"{run.rounds - run.settings['repeats']} each in turn, times in ms"
        table = Table(title, COLUMNS, finals)
        sections.insert(0, Section("Fresh rounds", [table], verdict.text))
    # What counts are the fresh rounds; of the trials, what did not serve is said.
    fresh = select_rounds(run, range(run.settings["repeats"], run.rounds))
    doubted = replace(fresh, failures=run.failures)
    doubts = find_doubts(doubted, MIN_REPLIES)
    document = Document("Tuning", sections, warnings=doubts, headline=[chart])
    return describe_run(run, document)


def make_tables(rows: Sequence[Sequence[str]], bound_ms: float) -> list[Table]:
    """The candidates: the first ones, and in a page alone the others, where there are any."""
    title = f"times in ms, p95 within {bound_ms:g} ms first"
    tables = [Table(title, COLUMNS, rows[:ROWS_SHOWN])]
    if more := rows[ROWS_SHOWN:]:
        tables.append(Table("further ones", COLUMNS, more, is_wide=True))
    return tables


def format_row(note: str, one: Outcome) -> list[str]:
    """In the order of COLUMNS."""
    setting = one.setting
    return [
        note,
        str(setting.batch_size),
        str(setting.max_batch_delay_ms),
        str(setting.workers),
        str(setting.threads or "-"),
        f"{one.rate:.1f}",
        f"{one.rate_low:.0f}-{one.rate_high:.0f}",
        *("" if math.isnan(ms) else f"{ms:.0f}" for ms in (one.p50_ms, one.p95_ms)),
        str(one.failures),
    ]


def list_notes(one: Outcome, reference: Setting, bound_ms: float) -> str:
    """What sets a row apart."""
    notes = {
        "preset": one.setting == reference,
        "no start": bool(one.error),
        "failed": bool(one.failures),
        "slow": one.p95_ms > bound_ms and not one.failures,
    }
    return ", ".join(note for note, is_so in notes.items() if is_so)


def format_outcome(run: Run, verdict: Verdict, preset: Path) -> str:
    """What to do with a winner, in the fresh rounds' figures; `preset` is the file with it."""
    (one,) = (f.outcome for f in read_finals(run) if f.setting == verdict.winner)
    figures = (
        f"{one.rate:.1f} req/s ({one.rate_low:.1f} to {one.rate_high:.1f} in"
        f" {run.rounds - run.settings['repeats']} fresh rounds),"
        f" p95 {one.p95_ms:.0f} ms, bound {bound_of(run):g} ms"
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


def check_writable(path: Path, force: bool) -> None:
    """Raises WrongOption before the search rather than after it."""
    if path.is_dir():
        raise WrongOption(f"--output {str(path)!r} is a folder: expected a file's name")
    if path.exists() and not force:
        raise WrongOption(f"--output {str(path)!r} exists: pass --force to replace it")


def make_preset(preset: Mapping[str, Any], winner: Setting) -> dict[str, Any]:
    """A preset with the winner's settings over the old ones; checked as `offpath archive` does."""
    settings = {
        **preset,
        "minWorkers": winner.workers,
        "maxWorkers": winner.workers,
        "batchSize": winner.batch_size,
        "maxBatchDelay": winner.max_batch_delay_ms,
    }
    if winner.threads:
        own = preset.get("handler") or {}
        settings["handler"] = {**own, "threads": winner.threads}
    make_model_config(settings, {}, {})
    return settings


def write_preset(path: Path, run: Run, verdict: Verdict) -> None:
    """Writes the winner as a preset file for `offpath archive`, with its origin in comments."""
    if verdict.winner is None:
        raise ValueError("nothing won")
    origin = [
        f"{run.started_at}: {run.command}",
        f"{verdict.winner}: {verdict.text}",
        f"on {run.host['cores']} x {run.host['cpu']}",
    ]
    preset = make_preset(run.details["preset"], verdict.winner)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(f"# {line}\n" for line in origin) + format_model_config(preset),
        encoding="utf-8",
    )
