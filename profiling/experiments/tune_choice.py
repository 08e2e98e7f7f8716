"""From a search's rows to a choice: outcomes, scores, finalists and the verdict; pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.servers.registering import Setting

# A gain below this is not worth another setting.
LEAST_GAIN = 1.02
# One round between equals is won by somebody.
LEAST_ROUNDS = 2
# A server that does not start, or answers nothing, is worse than any that does.
WORST_SCORE = -1e9
FAILING_SCORE = -1e6
# A bound that the user does not give: so much above the preset's own p95, which varies by as much.
BOUND_FACTOR = 1.25
# Where the preset was not answered at all.
DEFAULT_P95_MS = 100.0
# After so many candidates, none of them within so many times the bound, no other one will be.
HOPELESS_TRIALS = 6
HOPELESS_FACTOR = 2.0
# In closed loop a client's mean wait is clients / rate; its p95 is longer by about this.
P95_OVER_MEAN = 1.4


@dataclass(frozen=True)
class Outcome:
    """What windows of one setting say.

    Attributes:
        rate: good replies a second, median of the windows; `rate_low`, `rate_high` the extremes.
        p50_ms, p95_ms: over the 200s of all windows; NaN without any.
        failures: replies that were not 200.
        error: why it was not measured.
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

    def is_within(self, p95_ms: float) -> bool:
        """Whether it answers everything within the bound."""
        return not self.error and not self.failures and self.p95_ms <= p95_ms

    def score(self, p95_ms: float) -> float:
        """What a search maximises: the rate within the bound; beyond it, < 0, nearness to it."""
        if self.error or math.isnan(self.p95_ms):
            return WORST_SCORE
        if self.is_within(p95_ms):
            return self.rate
        if self.failures:
            # Worse than any latency: these are no answers at all.
            return FAILING_SCORE * (1 + self.failures / self.replies)
        return -self.p95_ms / p95_ms


def select_rounds(run: Run, rounds: Collection[int]) -> Run:
    """The rows and failures of some rounds."""
    return replace(
        run,
        rows=[row for row in run.rows if row.round in rounds],
        failures=[failure for failure in run.failures if failure.round in rounds],
    )


def read_outcomes(run: Run, rounds: Collection[int]) -> dict[Setting, Outcome]:
    """Of every setting that was tried in some rounds, in the order of the run."""
    part = select_rounds(run, rounds)
    summary = Summary(part)
    errors = {failure.variant: failure.reason for failure in part.failures}
    outcomes = {}
    for name, facts in run.variants.items():
        setting = Setting(**facts)
        if name in errors:
            outcomes[setting] = Outcome(setting, error=errors[name])
        for cell in summary.cells():
            rate = summary.spread(name, cell, "rate")
            if rate is None or name in errors:
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
    """The search itself: a round a window."""
    return read_outcomes(run, range(run.settings["repeats"]))


def find_bound(
    asked_ms: float | None, outcomes: Mapping[Setting, Outcome], reference: Setting
) -> float:
    """The p95 to stay within, in ms: the user's, else a little above the preset's own.

    Infinite while the preset has not been measured.
    """
    if asked_ms is not None:
        return asked_ms
    if reference not in outcomes:
        return math.inf
    p95_ms = outcomes[reference].p95_ms
    return DEFAULT_P95_MS if math.isnan(p95_ms) else round_up(BOUND_FACTOR * p95_ms)


def rank(outcomes: Collection[Outcome], p95_ms: float) -> list[Outcome]:
    """Best first."""
    return sorted(outcomes, key=lambda outcome: -outcome.score(p95_ms))


def choose_finalists(
    outcomes: Collection[Outcome], reference: Setting, p95_ms: float
) -> list[Setting]:
    """The preset and the best other setting within the bound; empty when nothing is within."""
    within = [one for one in rank(outcomes, p95_ms) if one.is_within(p95_ms)]
    if not within:
        return []
    others = [one.setting for one in within if one.setting != reference]
    return [reference, *others[:1]]


def round_up(value: float) -> float:
    """To two digits: 231.2 -> 240."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{step * math.ceil(value / step - 1e-9):.6g}")


def is_hopeless(outcomes: Collection[Outcome], p95_ms: float) -> bool:
    """Whether enough was measured, and all of it far beyond the bound."""
    answered = [one.p95_ms for one in outcomes if not math.isnan(one.p95_ms)]
    return len(answered) >= HOPELESS_TRIALS and min(answered) > HOPELESS_FACTOR * p95_ms


def explain_nothing_within(
    outcomes: Collection[Outcome], p95_ms: float, clients: int
) -> str:
    """Why no setting holds the bound, and what would help."""
    answered = [one for one in outcomes if not math.isnan(one.p95_ms)]
    if not answered:
        error = next((one.error for one in outcomes if one.error), "no reply")
        return f"no candidate could be measured: {error}"
    clean = [one for one in answered if not one.failures] or answered
    best = min(clean, key=lambda one: one.p95_ms)
    fastest = max(clean, key=lambda one: one.rate)
    failed = f", {best.failures} failed" if best.failures else ""
    ways = [
        f"--p95-ms {round_up(BOUND_FACTOR * best.p95_ms):g}, which judges the same"
        " measurements anew"
    ]
    served = math.floor(fastest.rate * p95_ms / 1000 / P95_OVER_MEAN)
    if 1 <= served < clients:
        ways.append(f"--clients {served}")
    return (
        f"none of {len(outcomes)} candidates answers 95 % within {p95_ms:g} ms:"
        f" the best p95 is {best.p95_ms:.0f} ms ({best.setting}; {best.rate:.0f} req/s{failed})."
        f" {clients} clients within {p95_ms:g} ms need about {1000 * clients / p95_ms:.0f} req/s,"
        f" the fastest candidate gave {fastest.rate:.0f}:"
        f" try {', or '.join(ways)}"
    )


@dataclass(frozen=True)
class Finalist:
    """A setting in the fresh rounds: all of them together, and each."""

    outcome: Outcome
    rounds: Sequence[Outcome]

    @property
    def setting(self) -> Setting:
        """Which one."""
        return self.outcome.setting

    def describe(self, p95_ms: float) -> str:
        """How surely it holds the bound: over all its rounds, and in how many of them."""
        one = self.outcome
        held = sum(outcome.is_within(p95_ms) for outcome in self.rounds)
        failed = f", {one.failures} failed" if one.failures else ""
        return (
            f"{one.setting}: {one.rate:.0f} req/s, p95 {one.p95_ms:.0f} ms{failed},"
            f" within in {held} of {len(self.rounds)} rounds"
        )


def read_finals(run: Run) -> list[Finalist]:
    """The fresh rounds, which are numbered after a trial's windows; empty where there were none."""
    rounds = range(run.settings["repeats"], run.rounds)
    each = [read_outcomes(run, [number]) for number in rounds]
    return [
        Finalist(outcome, [one[setting] for one in each if setting in one])
        for setting, outcome in read_outcomes(run, rounds).items()
    ]


@dataclass(frozen=True)
class Verdict:
    """What the fresh rounds say.

    Attributes:
        winner: None when nothing held the bound.
        is_better: the winner is not the preset.
        text: one or two sentences.
    """

    winner: Setting | None
    is_better: bool
    text: str


def judge(finals: Sequence[Finalist], reference: Setting, p95_ms: float) -> Verdict:
    """Compares the finalists round by round."""
    within = [one.setting for one in finals if one.outcome.is_within(p95_ms)]
    measured = "; ".join(one.describe(p95_ms) for one in finals)
    if not within:
        return Verdict(
            None,
            False,
            f"in fresh rounds nothing held p95 {p95_ms:g} ms ({measured}): search again with a"
            " larger --p95-ms, longer --seconds or fewer --clients",
        )
    others = [one for one in finals if one.setting != reference]
    if not others:
        return Verdict(
            reference,
            False,
            "confirms the preset: no other candidate was within the bound",
        )
    if within == [reference]:
        return Verdict(
            reference,
            False,
            "confirms the preset: in fresh rounds the best other candidate did not hold the bound"
            f" ({measured})",
        )
    if reference not in within:
        return Verdict(
            others[0].setting,
            True,
            f"beats the preset, which does not hold p95 {p95_ms:g} ms ({measured})",
        )
    (preset,) = (one for one in finals if one.setting == reference)
    return compare(preset, others[0])


def compare(preset: Finalist, challenger: Finalist) -> Verdict:
    """Two finalists within the bound: the challenger must win every round, and clearly."""
    ratios = [
        mine.rate / base.rate for mine, base in zip(challenger.rounds, preset.rounds)
    ]
    gain = statistics.median(ratios)
    won = sum(ratio > 1 for ratio in ratios)
    spread = f"rounds: {format_gain(min(ratios))} to {format_gain(max(ratios))}"
    if won == len(ratios) >= LEAST_ROUNDS and gain >= LEAST_GAIN:
        return Verdict(
            challenger.setting,
            True,
            f"beats the preset by {format_gain(gain)} ({spread}; it won {won} of {len(ratios)},"
            f" which equals do by chance {100 * 0.5**won:.0f} % of the time)",
        )
    return Verdict(
        preset.setting,
        False,
        f"confirms the preset: the best other candidate ({challenger.setting}) is"
        f" {format_gain(gain)} ({spread}), {won} of {len(ratios)} rounds won: no gain beyond the"
        " noise" + ("" if len(ratios) >= LEAST_ROUNDS else "; more --rounds can tell"),
    )


def format_gain(ratio: float) -> str:
    """+12.0 %."""
    return f"{100 * (ratio - 1):+.1f} %"
