"""Results of a search, read from its rows: outcomes, finalists, verdict, report and preset."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from offpath.archive.model_config import format_model_config, make_model_config
from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.report.charts import Bar, BarChart
from offpath.profiling.report.document import Document, Section, describe_run, format_table
from offpath.profiling.servers.registering import Setting

# A window lasts until it has this many replies, for a minute at most: a p95 of fewer says nothing.
MIN_REPLIES = 60
# A gain below this is not worth another setting.
LEAST_GAIN = 1.02
# One of two equal settings wins a single round.
LEAST_ROUNDS = 2
# The best p95 of a search varies by about a quarter.
BOUND_FACTOR = 1.25
# Candidates in the chart.
BARS_SHOWN = 15
COLUMNS = (
    *("", "batch", "delay", "workers", "threads"),
    *("req/s", "range", "p50", "p95", "failed"),
)


@dataclass(frozen=True)
class Outcome:
    """The result of some windows of one setting.

    Attributes:
        rate: good replies per second, median of the windows; `rate_low`, `rate_high`: extremes.
        p50_ms, p95_ms: over the 200s of all windows; NaN without any.
        failures: replies other than 200.
        error: reason why the setting was not measured.
    """

    setting: Setting
    rate: float = 0.0
    rate_low: float = 0.0
    rate_high: float = 0.0
    p50_ms: float = math.nan
    p95_ms: float = math.nan
    failures: int = 0
    replies: int = 0
    error: str | None = None

    @property
    def is_answered(self) -> bool:
        return not math.isnan(self.p95_ms)

    def is_within(self, p95_ms: float) -> bool:
        """Tells whether every reply was good and their p95 is within the bound."""
        return not self.error and not self.failures and self.p95_ms <= p95_ms


def select_rounds(run: Run, rounds: Collection[int]) -> Run:
    return replace(
        run,
        rows=[row for row in run.rows if row.round in rounds],
        failures=[failure for failure in run.failures if failure.round in rounds],
    )


def read_outcomes(run: Run, rounds: Collection[int]) -> dict[Setting, Outcome]:
    """Returns the outcome of every setting tried in some rounds, in the order of the run."""
    part = select_rounds(run, rounds)
    summary = Summary(part)
    errors = {failure.variant: failure.reason for failure in part.failures}
    outcomes = {}
    for name, facts in run.variants.items():
        setting = Setting(**facts)
        if name in errors:
            outcomes[setting] = Outcome(setting, error=errors[name])
            continue
        for cell in summary.cells():
            rate = summary.spread(name, cell, "rate")
            if rate is None:
                continue
            p50_ms, p95_ms = (
                math.nan if value is None else value
                for percent in (50, 95)
                for value in [summary.value(name, cell, f"{LATENCY}.p{percent}")]
            )
            statuses = [
                row.value or 0.0
                for row in part.rows
                if row.variant == name and row.metric.startswith("replies_")
            ]
            outcomes[setting] = Outcome(
                setting=setting,
                rate=rate.median,
                rate_low=rate.low,
                rate_high=rate.high,
                p50_ms=p50_ms,
                p95_ms=p95_ms,
                failures=sum(summary.failures(name, cell).values()),
                replies=round(sum(statuses)),
            )
    return outcomes


def read_trials(run: Run) -> dict[Setting, Outcome]:
    """Returns the outcomes of the candidates, without the fresh rounds."""
    return read_outcomes(run, range(run.settings["repeats"]))


def rank(outcomes: Collection[Outcome], p95_ms: float) -> list[Outcome]:
    """Sorts outcomes: by rate within the bound, then by p95, then those that failed requests."""

    def key(one: Outcome) -> tuple[int, float]:
        if one.is_within(p95_ms):
            return 0, -one.rate
        if one.error or not one.is_answered:
            return 3, 0.0
        return (2, one.failures / one.replies) if one.failures else (1, one.p95_ms)

    return sorted(outcomes, key=key)


def choose_finalists(
    outcomes: Collection[Outcome], reference: Setting, p95_ms: float
) -> list[Setting]:
    """Returns the preset and the best other setting within the bound; empty where none is."""
    within = [one for one in rank(outcomes, p95_ms) if one.is_within(p95_ms)]
    if not within:
        return []
    others = [one.setting for one in within if one.setting != reference]
    return [reference, *others[:1]]


def describe(one: Outcome) -> str:
    failed = f", {one.failures} failed" if one.failures else ""
    return f"{one.setting}: {one.rate:.0f} req/s, p95 {one.p95_ms:.0f} ms{failed}"


def read_fresh_rounds(run: Run) -> list[dict[Setting, Outcome]]:
    """Returns the outcomes of each fresh round; they are numbered after the candidates' windows."""
    return [read_outcomes(run, [number]) for number in range(run.settings["repeats"], run.rounds)]


class Verdict(NamedTuple):
    """The conclusion: a setting beats the preset, the preset is confirmed, or neither.

    `winner` is None where nothing was within the bound; `text` is one or two sentences.
    """

    winner: Setting | None
    text: str


def judge(
    trials: Collection[Outcome],
    finals: Mapping[Setting, Outcome],
    fresh: Sequence[Mapping[Setting, Outcome]],
    reference: Setting,
    p95_ms: float,
) -> Verdict:
    """Compares the finalists round by round.

    Another setting beats the preset if the preset breaks the bound, or if the setting wins every
    round and clearly.

    Args:
        finals: outcomes of all fresh rounds together; empty where no candidate was within.
        fresh: outcomes of each fresh round.
    """
    within = [setting for setting, one in finals.items() if one.is_within(p95_ms)]
    if not within:
        return Verdict(None, explain_nothing_within(trials, finals.values(), p95_ms))
    other = next((setting for setting in within if setting != reference), None)
    if other is None:
        text = "The search confirms the preset: nothing else was within the bound."
        return Verdict(reference, text)
    if reference not in within:
        text = f"{other} beats the preset, which does not keep p95 within {p95_ms:g} ms."
        return Verdict(other, text)
    ratios = [one[other].rate / one[reference].rate for one in fresh if other in one]
    gain, won = statistics.median(ratios), sum(ratio > 1 for ratio in ratios)
    spread = (
        f"{format_gain(gain)} (rounds: {format_gain(min(ratios))} to {format_gain(max(ratios))};"
        f" won {won} of {len(ratios)}"
    )
    if won == len(ratios) >= LEAST_ROUNDS and gain >= LEAST_GAIN:
        text = (
            f"{other} beats the preset by {spread}, which happens by chance"
            f" {100 * 0.5**won:.0f} % of the time where two settings are equal)."
        )
        return Verdict(other, text)
    text = (
        f"The search confirms the preset: the best other candidate ({other}) differs by {spread}),"
        " which is no gain beyond the noise."
    )
    return Verdict(reference, text)


def explain_nothing_within(
    trials: Collection[Outcome], finals: Collection[Outcome], p95_ms: float
) -> str:
    measured = finals or trials
    answered = [one for one in measured if one.is_answered]
    if not answered:
        error = next((one.error for one in measured if one.error), "no reply")
        return f"no candidate could be measured: {error}"
    best = min(answered, key=lambda one: (one.failures, one.p95_ms))
    where = "finalists in fresh rounds" if finals else f"{len(trials)} candidates"
    return (
        f"none of the {where} answers 95 % of the requests within {p95_ms:g} ms: the best is"
        f" {describe(best)}; allow {math.ceil(BOUND_FACTOR * best.p95_ms)} ms, or send fewer"
        " requests at a time"
    )


def format_gain(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


@dataclass(frozen=True)
class Result:
    """A finished search.

    Attributes:
        bound_ms: the p95 that the search was judged by.
        finals: outcomes of the fresh rounds; empty where no candidate was within the bound.
    """

    run: Run
    reference: Setting
    bound_ms: float
    ranked: Sequence[Outcome]
    finals: Mapping[Setting, Outcome]
    verdict: Verdict

    def note(self, one: Outcome) -> str:
        notes = {
            "preset": one.setting == self.reference,
            "no start": bool(one.error),
            "failed": bool(one.failures),
            "slow": one.p95_ms > self.bound_ms and not one.failures,
        }
        return ", ".join(note for note, applies in notes.items() if applies)


def read_result(run: Run) -> Result:
    reference, trials = Setting(**run.details["reference"]), read_trials(run).values()
    bound_ms, fresh = run.details["p95_ms"], read_fresh_rounds(run)
    finals = read_outcomes(run, range(run.settings["repeats"], run.rounds))
    verdict = judge(trials, finals, fresh, reference, bound_ms)
    return Result(run, reference, bound_ms, rank(trials, bound_ms), finals, verdict)


def format_latency(ms: float) -> str:
    return "" if math.isnan(ms) else f"{ms:.0f}"


def draw_candidates(result: Result) -> list[BarChart]:
    """Draws the rates of the best candidates that answered everything; the winner is strong."""
    bars = [
        Bar(
            name_bar(one.setting),
            one.rate,
            f"{one.rate:.0f}, p95 {one.p95_ms:.0f} ms",
            one.setting == result.verdict.winner,
            one.rate_low,
            one.rate_high,
        )
        for one in result.ranked[:BARS_SHOWN]
        if one.is_answered and not one.failures
    ]
    title = "Best candidates: batch size, delay, workers x threads"
    return [BarChart(title, "requests per second", bars)] if bars else []


def name_bar(setting: Setting) -> str:
    threads = f" x {setting.threads}" if setting.threads else ""
    return f"{setting.batch_size}, {setting.max_batch_delay_ms} ms, {setting.workers}{threads}"


def format_outcomes(result: Result, outcomes: Iterable[Outcome], title: str) -> str:
    rows = [
        [
            result.note(one),
            str(one.setting.batch_size),
            str(one.setting.max_batch_delay_ms),
            str(one.setting.workers),
            str(one.setting.threads or "-"),
            f"{one.rate:.1f}",
            f"{one.rate_low:.0f}-{one.rate_high:.0f}",
            format_latency(one.p50_ms),
            format_latency(one.p95_ms),
            str(one.failures),
        ]
        for one in outcomes
    ]
    return format_table(COLUMNS, rows, title=title)


def document_of(run: Run, _: str | None = None) -> Document:
    result, repeats = read_result(run), run.settings["repeats"]
    charts = draw_candidates(result)
    # The fresh rounds decide; of the candidates, only failures are doubts.
    fresh = select_rounds(run, range(repeats, run.rounds))
    doubts = find_doubts(replace(fresh, failures=run.failures), MIN_REPLIES)
    finals = f"{run.rounds - repeats} rounds of each in turn; times in ms"
    candidates = f"times in ms; p95 within {result.bound_ms:g} ms first"
    sections = [
        Section(
            "Fresh rounds",
            format_outcomes(result, result.finals.values(), finals),
            note=result.verdict.text,
        ),
        Section("Candidates", format_outcomes(result, result.ranked, candidates), charts),
    ]
    return describe_run(run, Document("Tuning", sections, warnings=doubts, headline=charts))


def write_preset(path: Path, result: Result) -> None:
    """Writes the winner as a preset, its origin in comments; raises ValueError if nothing won."""
    run, winner = result.run, result.verdict.winner
    if winner is None:
        raise ValueError("no setting won")
    preset = winner.put_into(run.details["preset"])
    # Checked as `offpath archive` does.
    make_model_config(preset, {}, {})
    origin = [
        f"{run.started_at}: {run.command}",
        f"{winner}",
        result.verdict.text,
        f"on {run.host['cores']} x {run.host['cpu']}",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(f"# {line}\n" for line in origin) + format_model_config(preset),
        encoding="utf-8",
    )
