"""Results of a search, read from its rows: outcomes, finalists, verdict, report and preset."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from offpath.archive.model_config import format_model_config, make_model_config
from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.report.charts import Bar, BarChart
from offpath.profiling.report.declared import (
    Column,
    Part,
    Report,
    TableSpec,
    make_document,
)
from offpath.profiling.report.document import Document
from offpath.profiling.report.measured import describe_run
from offpath.profiling.servers.registering import Setting

# A window lasts until it has this many replies, for a minute at most: a p95 of fewer says nothing.
MIN_REPLIES = 60
# A gain below this is not worth another setting.
LEAST_GAIN = 1.02
# One of two equal settings wins a single round.
LEAST_ROUNDS = 2
# A server that does not start, or answers nothing, is worse than any server that does.
WORST_SCORE = -1e9
FAILING_SCORE = -1e6
# Default bound: this factor times the preset's own p95, which varies by as much.
BOUND_FACTOR = 1.25
# Default bound where the preset was not answered at all.
DEFAULT_P95_MS = 100.0
# After this many candidates, all beyond this factor times the bound, none will be within it.
HOPELESS_TRIALS = 6
HOPELESS_FACTOR = 2.0
# In closed loop a client's mean wait is clients / rate; its p95 is longer by about this factor.
P95_OVER_MEAN = 1.4
# Candidates in the chart and in the table of the terminal.
ROWS_SHOWN = 15


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
        """True where at least one reply was a 200."""
        return not math.isnan(self.p95_ms)

    def is_within(self, p95_ms: float) -> bool:
        """Tells whether every reply was good and their p95 is within the bound."""
        return not self.error and not self.failures and self.p95_ms <= p95_ms

    def score(self, p95_ms: float) -> float:
        """Returns what a search maximises: the rate within the bound, else nearness (below 0)."""
        if self.error or not self.is_answered:
            return WORST_SCORE
        if self.is_within(p95_ms):
            return self.rate
        if self.failures:
            # A failure is worse than any latency.
            return FAILING_SCORE * (1 + self.failures / self.replies)
        return -self.p95_ms / p95_ms


def select_rounds(run: Run, rounds: Collection[int]) -> Run:
    """Returns the run with the rows and failures of some rounds."""
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


def find_bound(
    asked_ms: float | None, outcomes: Mapping[Setting, Outcome], reference: Setting
) -> float:
    """Returns the bound on the p95, in ms: the user's, else a little above the preset's own.

    The bound is infinite until the preset was measured.
    """
    if asked_ms is not None:
        return asked_ms
    if reference not in outcomes:
        return math.inf
    preset = outcomes[reference]
    return round_up(BOUND_FACTOR * preset.p95_ms) if preset.is_answered else DEFAULT_P95_MS


def round_up(value: float) -> float:
    """Rounds up to two digits: 231.2 -> 240."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{step * math.ceil(value / step - 1e-9):.6g}")


def rank(outcomes: Collection[Outcome], p95_ms: float) -> list[Outcome]:
    """Sorts outcomes by their score, best first."""
    return sorted(outcomes, key=lambda outcome: -outcome.score(p95_ms))


def choose_finalists(
    outcomes: Collection[Outcome], reference: Setting, p95_ms: float
) -> list[Setting]:
    """Returns the preset and the best other setting within the bound; empty where none is."""
    within = [one for one in rank(outcomes, p95_ms) if one.is_within(p95_ms)]
    if not within:
        return []
    others = [one.setting for one in within if one.setting != reference]
    return [reference, *others[:1]]


def is_hopeless(outcomes: Collection[Outcome], p95_ms: float) -> bool:
    """Tells whether enough candidates were measured and all are far beyond the bound."""
    answered = [one.p95_ms for one in outcomes if one.is_answered]
    return len(answered) >= HOPELESS_TRIALS and min(answered) > HOPELESS_FACTOR * p95_ms


def explain_nothing_within(outcomes: Collection[Outcome], p95_ms: float, clients: int) -> str:
    """Explains why no setting is within the bound, and what would help."""
    answered = [one for one in outcomes if one.is_answered]
    if not answered:
        error = next((one.error for one in outcomes if one.error), "no reply")
        return f"no candidate could be measured: {error}"
    clean = [one for one in answered if not one.failures] or answered
    best = min(clean, key=lambda one: one.p95_ms)
    fastest = max(clean, key=lambda one: one.rate)
    failed = f", {best.failures} failed" if best.failures else ""
    ways = [f"a bound of {round_up(BOUND_FACTOR * best.p95_ms):g} ms"]
    served = math.floor(fastest.rate * p95_ms / 1000 / P95_OVER_MEAN)
    if 1 <= served < clients:
        ways.append(f"a load of {served} clients" if served > 1 else "a single client")
    return (
        f"none of {len(outcomes)} candidates answers 95 % of the requests within {p95_ms:g} ms:"
        f" the best p95 is {best.p95_ms:.0f} ms ({best.setting}; {best.rate:.0f} req/s{failed})."
        f" {clients} clients within {p95_ms:g} ms need about {1000 * clients / p95_ms:.0f} req/s,"
        f" the fastest candidate reached {fastest.rate:.0f}: try {', or '.join(ways)}"
    )


@dataclass(frozen=True)
class Finalist:
    """A setting in the fresh rounds: the outcome of all rounds together, and of each."""

    outcome: Outcome
    rounds: Sequence[Outcome]

    @property
    def setting(self) -> Setting:
        """The setting itself."""
        return self.outcome.setting

    def describe(self, p95_ms: float) -> str:
        """Describes rate, p95 and the number of rounds within the bound."""
        one = self.outcome
        held = sum(outcome.is_within(p95_ms) for outcome in self.rounds)
        failed = f", {one.failures} failed" if one.failures else ""
        return (
            f"{one.setting}: {one.rate:.0f} req/s, p95 {one.p95_ms:.0f} ms{failed},"
            f" within the bound in {held} of {len(self.rounds)} rounds"
        )


def read_finals(run: Run) -> list[Finalist]:
    """Returns the finalists; the fresh rounds are numbered after the windows of a candidate."""
    rounds = range(run.settings["repeats"], run.rounds)
    each = [read_outcomes(run, [number]) for number in rounds]
    return [
        Finalist(outcome, [one[setting] for one in each if setting in one])
        for setting, outcome in read_outcomes(run, rounds).items()
    ]


class Verdict(NamedTuple):
    """The conclusion from the fresh rounds.

    Attributes:
        winner: None where no finalist was within the bound.
        text: one or two sentences.
    """

    winner: Setting | None
    text: str


def judge(finals: Sequence[Finalist], reference: Setting, p95_ms: float) -> Verdict:
    """Compares the finalists round by round."""
    within = [one for one in finals if one.outcome.is_within(p95_ms)]
    others = [one for one in finals if one.setting != reference]
    measured = "; ".join(one.describe(p95_ms) for one in finals)
    if not within:
        return Verdict(
            None,
            f"no finalist kept p95 within {p95_ms:g} ms in the fresh rounds ({measured}): search"
            " again with a larger bound, longer windows or fewer clients",
        )
    if not others:
        return Verdict(
            reference,
            "The search confirms the preset: no other candidate was within the bound.",
        )
    (other,) = others
    if other not in within:
        return Verdict(
            reference,
            "The search confirms the preset: in the fresh rounds the best other candidate was not"
            f" within the bound ({measured}).",
        )
    if len(within) == 1:
        return Verdict(
            other.setting,
            f"{other.setting} beats the preset, which does not keep p95 within {p95_ms:g} ms"
            f" ({measured}).",
        )
    (preset,) = (one for one in finals if one.setting == reference)
    return compare(preset, other)


def compare(preset: Finalist, challenger: Finalist) -> Verdict:
    """Judges two finalists within the bound: the challenger must win every round, and clearly."""
    ratios = [mine.rate / base.rate for mine, base in zip(challenger.rounds, preset.rounds)]
    gain = statistics.median(ratios)
    won = sum(ratio > 1 for ratio in ratios)
    spread = f"rounds: {format_gain(min(ratios))} to {format_gain(max(ratios))}"
    if won == len(ratios) >= LEAST_ROUNDS and gain >= LEAST_GAIN:
        return Verdict(
            challenger.setting,
            f"{challenger.setting} beats the preset by {format_gain(gain)} ({spread}; won {won} of"
            f" {len(ratios)}, which happens by chance {100 * 0.5**won:.0f} % of the time where two"
            " settings are equal).",
        )
    return Verdict(
        preset.setting,
        f"The search confirms the preset: the best other candidate ({challenger.setting}) differs"
        f" by {format_gain(gain)} ({spread}; won {won} of {len(ratios)}), which is no gain beyond"
        " the noise." + ("" if len(ratios) >= LEAST_ROUNDS else " More rounds can tell."),
    )


def format_gain(ratio: float) -> str:
    """Returns a ratio as `+12.0 %`."""
    return f"{100 * (ratio - 1):+.1f} %"


@dataclass(frozen=True)
class Result:
    """A finished search.

    Attributes:
        reference: the preset's setting.
        bound_ms: the p95 that the search was judged by.
        ranked: the candidates, best first.
        finals: empty where no candidate was within the bound; then there is no verdict.
    """

    run: Run
    reference: Setting
    bound_ms: float
    ranked: Sequence[Outcome]
    finals: Sequence[Finalist]
    verdict: Verdict | None

    @property
    def is_better(self) -> bool:
        """True where another setting than the preset won."""
        winner = self.verdict and self.verdict.winner
        return winner not in (None, self.reference)

    def describe_winner(self) -> str:
        """Describes the winner by the figures of its fresh rounds."""
        winner = self.verdict and self.verdict.winner
        (one,) = (final.outcome for final in self.finals if final.setting == winner)
        return (
            f"{winner}: {one.rate:.1f} req/s ({one.rate_low:.1f} to {one.rate_high:.1f} in"
            f" {self.run.rounds - self.run.settings['repeats']} fresh rounds),"
            f" p95 {one.p95_ms:.0f} ms, bound {self.bound_ms:g} ms"
        )

    def list_rows(self) -> list[Row]:
        """Lists the candidates as rows of a table."""
        return [Row(self.describe(one), one) for one in self.ranked]

    def describe(self, one: Outcome) -> str:
        """Returns what sets a candidate apart."""
        notes = {
            "preset": one.setting == self.reference,
            "no start": bool(one.error),
            "failed": bool(one.failures),
            "slow": one.p95_ms > self.bound_ms and not one.failures,
        }
        return ", ".join(note for note, applies in notes.items() if applies)


def read_result(run: Run) -> Result:
    """Reads a search from its run."""
    reference, trials = Setting(**run.details["reference"]), read_trials(run)
    bound_ms = find_bound(run.details["p95_ms"], trials, reference)
    finals = read_finals(run)
    verdict = judge(finals, reference, bound_ms) if finals else None
    ranked = rank(trials.values(), bound_ms)
    return Result(run, reference, bound_ms, ranked, finals, verdict)


class Row(NamedTuple):
    """One line of a table of settings."""

    note: str
    outcome: Outcome


def list_finals(result: Result) -> list[Row]:
    """Lists the finalists as rows of a table."""
    return [
        Row("preset" if one.setting == result.reference else "", one.outcome)
        for one in result.finals
    ]


def format_latency(ms: float) -> str:
    """Returns whole milliseconds; empty without a reply."""
    return "" if math.isnan(ms) else f"{ms:.0f}"


def draw_candidates(result: Result) -> Iterator[BarChart]:
    """Draws the rates of the best candidates that answered everything; the winner is strong."""
    winner = result.verdict and result.verdict.winner
    bars = [
        Bar(
            name_bar(one.setting),
            one.rate,
            f"{one.rate:.0f}, p95 {one.p95_ms:.0f} ms",
            one.setting == winner,
            one.rate_low,
            one.rate_high,
        )
        for one in result.ranked[:ROWS_SHOWN]
        if one.is_answered and not one.failures
    ]
    if bars:
        title = "Best candidates: batch size, delay, workers x threads"
        yield BarChart(title, "requests per second", bars)


def name_bar(setting: Setting) -> str:
    """Returns a setting in as few letters as fit beside a bar."""
    threads = f" x {setting.threads}" if setting.threads else ""
    return f"{setting.batch_size}, {setting.max_batch_delay_ms} ms, {setting.workers}{threads}"


COLUMNS: tuple[Column[Row], ...] = (
    Column("", lambda row: row.note),
    Column("batch", lambda row: str(row.outcome.setting.batch_size)),
    Column("delay", lambda row: str(row.outcome.setting.max_batch_delay_ms)),
    Column("workers", lambda row: str(row.outcome.setting.workers)),
    Column("threads", lambda row: str(row.outcome.setting.threads or "-")),
    Column("req/s", lambda row: f"{row.outcome.rate:.1f}"),
    Column("range", lambda row: f"{row.outcome.rate_low:.0f}-{row.outcome.rate_high:.0f}"),
    Column("p50", lambda row: format_latency(row.outcome.p50_ms)),
    Column("p95", lambda row: format_latency(row.outcome.p95_ms)),
    Column("failed", lambda row: str(row.outcome.failures)),
)
FRESH_ROUNDS: TableSpec[Result, Row] = TableSpec(
    lambda result: f"{result.run.rounds - result.run.settings['repeats']} rounds of each in turn;"
    " times in ms",
    list_finals,
    COLUMNS,
)
CANDIDATES: TableSpec[Result, Row] = TableSpec(
    lambda result: f"times in ms; p95 within {result.bound_ms:g} ms first",
    lambda result: result.list_rows()[:ROWS_SHOWN],
    COLUMNS,
)
FURTHER: TableSpec[Result, Row] = TableSpec(
    "further candidates",
    lambda result: result.list_rows()[ROWS_SHOWN:],
    COLUMNS,
    is_wide=True,
)
REPORT: Report[Result] = Report(
    "Tuning",
    (
        Part(
            "Fresh rounds",
            (FRESH_ROUNDS,),
            lambda result: result.verdict.text if result.verdict else "",
        ),
        Part("Candidates", (draw_candidates, CANDIDATES, FURTHER)),
    ),
    headline=(draw_candidates,),
)


def document_of(run: Run, _: str | None = None) -> Document:
    """Returns everything that is shown of a search."""
    # The fresh rounds decide; of the candidates, only failures are doubts.
    fresh = select_rounds(run, range(run.settings["repeats"], run.rounds))
    doubts = find_doubts(replace(fresh, failures=run.failures), MIN_REPLIES)
    return describe_run(run, make_document(REPORT, {"": read_result(run)}, doubts))


def make_preset(preset: Mapping[str, Any], winner: Setting) -> dict[str, Any]:
    """Returns the preset with the winner's settings, checked as `offpath archive` does."""
    settings = {
        **preset,
        "minWorkers": winner.workers,
        "maxWorkers": winner.workers,
        "batchSize": winner.batch_size,
        "maxBatchDelay": winner.max_batch_delay_ms,
    }
    if winner.threads:
        handler = preset.get("handler") or {}
        settings["handler"] = {**handler, "threads": winner.threads}
    make_model_config(settings, {}, {})
    return settings


def write_preset(path: Path, result: Result) -> None:
    """Writes the winner as a preset file for `offpath archive`, with its origin in comments.

    Raises:
        ValueError: no setting won.
    """
    run, verdict = result.run, result.verdict
    if verdict is None or verdict.winner is None:
        raise ValueError("no setting won")
    origin = [
        f"{run.started_at}: {run.command}",
        f"{verdict.winner}",
        verdict.text,
        f"on {run.host['cores']} x {run.host['cpu']}",
    ]
    preset = make_preset(run.details["preset"], verdict.winner)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(f"# {line}\n" for line in origin) + format_model_config(preset),
        encoding="utf-8",
    )
