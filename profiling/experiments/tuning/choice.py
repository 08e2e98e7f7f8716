"""From measurements to a choice: statistics, scores, finalists and the verdict; pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from offpath.profiling.core.summary import percentile
from offpath.profiling.experiments.tuning.result import FinalRound, Trial, Window
from offpath.profiling.experiments.tuning.space import Candidate

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
class Summary:
    """What windows of one candidate say.

    Attributes:
        rate: good replies a second, median of the windows; `rate_low`, `rate_high` the extremes.
        p50_ms, p95_ms: over the 200s of all windows; NaN without any.
        failures: replies that were not 200.
        other_cores: cores busy with something else, the worst window.
        error: why it was not measured.
    """

    candidate: Candidate
    rate: float
    rate_low: float
    rate_high: float
    p50_ms: float
    p95_ms: float
    failures: int
    replies: int
    other_cores: float
    error: str | None = None

    def is_within(self, p95_ms: float) -> bool:
        """Whether it answers everything within the bound."""
        return not self.error and not self.failures and self.p95_ms <= p95_ms


def summarise(
    candidate: Candidate, windows: Sequence[Window], error: str | None = None
) -> Summary:
    """Statistics over a candidate's windows."""
    rates = [window.rate for window in windows] or [0.0]
    latencies = [ms for window in windows for ms in window.latencies_ms]
    return Summary(
        candidate=candidate,
        rate=statistics.median(rates),
        rate_low=min(rates),
        rate_high=max(rates),
        p50_ms=percentile(latencies, 50),
        p95_ms=percentile(latencies, 95),
        failures=sum(window.failures for window in windows),
        replies=sum(sum(window.statuses.values()) for window in windows),
        other_cores=max(
            (w.cpu_s.get("other", 0.0) / w.elapsed_s for w in windows), default=0.0
        ),
        error=error,
    )


def summarise_trials(trials: Iterable[Trial]) -> list[Summary]:
    """One summary a candidate, in the order of their first trial."""
    return [summarise(trial.candidate, trial.windows, trial.error) for trial in trials]


def score(summary: Summary, p95_ms: float) -> float:
    """What the search maximises: the rate within the bound; beyond it, below 0, nearness to it."""
    if summary.error or math.isnan(summary.p95_ms):
        return WORST_SCORE
    if summary.is_within(p95_ms):
        return summary.rate
    if summary.failures:
        # Worse than any latency: these are no answers at all.
        return FAILING_SCORE * (1 + summary.failures / summary.replies)
    return -summary.p95_ms / p95_ms


def rank(summaries: Iterable[Summary], p95_ms: float) -> list[Summary]:
    """Best first."""
    return sorted(summaries, key=lambda summary: -score(summary, p95_ms))


def choose_finalists(
    summaries: Sequence[Summary], reference: Candidate, p95_ms: float
) -> list[Candidate]:
    """The preset and the best other candidate within the bound; empty when nothing is within."""
    within = [s for s in rank(summaries, p95_ms) if s.is_within(p95_ms)]
    if not within:
        return []
    others = [s.candidate for s in within if s.candidate != reference]
    return [reference, *others[:1]]


def find_bound(
    asked_ms: float | None, trials: Iterable[Trial], reference: Candidate
) -> float:
    """The p95 to stay within, in ms: the user's, else a little above the preset's own.

    Infinite while the preset has not been measured.
    """
    if asked_ms is not None:
        return asked_ms
    measured = [s for s in summarise_trials(trials) if s.candidate == reference]
    if not measured:
        return math.inf
    p95_ms = measured[0].p95_ms
    return DEFAULT_P95_MS if math.isnan(p95_ms) else round_up(BOUND_FACTOR * p95_ms)


def round_up(value: float) -> float:
    """To two digits: 231.2 -> 240."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{step * math.ceil(value / step - 1e-9):.6g}")


def is_hopeless(summaries: Sequence[Summary], p95_ms: float) -> bool:
    """Whether enough was measured, and all of it far beyond the bound."""
    answered = [s.p95_ms for s in summaries if not math.isnan(s.p95_ms)]
    return len(answered) >= HOPELESS_TRIALS and min(answered) > HOPELESS_FACTOR * p95_ms


def explain_nothing_within(
    summaries: Sequence[Summary], p95_ms: float, clients: int
) -> str:
    """Why no candidate holds the bound, and what would help."""
    answered = [s for s in summaries if not s.error and not math.isnan(s.p95_ms)]
    if not answered:
        errors = next((s.error for s in summaries if s.error), "no reply")
        return f"no candidate could be measured: {errors}"
    clean = [s for s in answered if not s.failures] or answered
    best = min(clean, key=lambda s: s.p95_ms)
    fastest = max(clean, key=lambda s: s.rate)
    failed = f", {best.failures} failed" if best.failures else ""
    return (
        f"none of {len(summaries)} candidates answers 95 % within {p95_ms:g} ms:"
        f" the best p95 is {best.p95_ms:.0f} ms ({best.candidate}; {best.rate:.0f} req/s{failed})."
        f" {clients} clients within {p95_ms:g} ms need about {1000 * clients / p95_ms:.0f} req/s,"
        f" the fastest candidate gave {fastest.rate:.0f}:"
        f" try {advise(best, fastest, p95_ms, clients)}"
    )


def advise(best: Summary, fastest: Summary, p95_ms: float, clients: int) -> str:
    """A bound that can be held with these clients, clients that can be served within the bound."""
    ways = [
        f"--p95-ms {round_up(BOUND_FACTOR * best.p95_ms):g}, which judges the same"
        " measurements anew"
    ]
    served = math.floor(fastest.rate * p95_ms / 1000 / P95_OVER_MEAN)
    if 1 <= served < clients:
        ways.append(f"--clients {served}")
    return ", or ".join(ways)


@dataclass(frozen=True)
class Verdict:
    """What the fresh rounds say.

    Attributes:
        winner: None when nothing held the bound.
        is_better: the winner is not the preset.
        text: one or two sentences.
    """

    winner: Candidate | None
    is_better: bool
    text: str


def summarise_finals(finals: Sequence[FinalRound]) -> dict[Candidate, Summary]:
    """One summary a finalist, in their order."""
    candidates = list(dict.fromkeys(final.candidate for final in finals))
    return {
        candidate: summarise(
            candidate, [f.window for f in finals if f.candidate == candidate]
        )
        for candidate in candidates
    }


def judge(finals: Sequence[FinalRound], reference: Candidate, p95_ms: float) -> Verdict:
    """Compares the finalists round by round."""
    by_candidate = summarise_finals(finals)
    within = [c for c, summary in by_candidate.items() if summary.is_within(p95_ms)]
    measured = "; ".join(
        format_hold(finals, summary, p95_ms) for summary in by_candidate.values()
    )
    if not within:
        return Verdict(
            None,
            False,
            f"in fresh rounds nothing held p95 {p95_ms:g} ms ({measured}): search again with a"
            " smaller --p95-ms, longer --seconds or fewer --clients",
        )
    others = [candidate for candidate in by_candidate if candidate != reference]
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
            others[0],
            True,
            f"beats the preset, which does not hold p95 {p95_ms:g} ms ({measured})",
        )
    return compare(finals, reference, others[0])


def format_hold(finals: Sequence[FinalRound], summary: Summary, p95_ms: float) -> str:
    """How surely a finalist holds the bound: over all its rounds, and in how many of them."""
    rounds = [
        summarise(final.candidate, [final.window])
        for final in finals
        if final.candidate == summary.candidate
    ]
    held = sum(one.is_within(p95_ms) for one in rounds)
    failed = f", {summary.failures} failed" if summary.failures else ""
    return (
        f"{summary.candidate}: {summary.rate:.0f} req/s, p95 {summary.p95_ms:.0f} ms{failed},"
        f" within in {held} of {len(rounds)} rounds"
    )


def compare(
    finals: Sequence[FinalRound], reference: Candidate, challenger: Candidate
) -> Verdict:
    """Two finalists within the bound: the challenger must win every round, and clearly."""
    ratios = round_ratios(finals, reference, challenger)
    gain = statistics.median(ratios)
    won = sum(ratio > 1 for ratio in ratios)
    spread = f"rounds: {format_gain(min(ratios))} to {format_gain(max(ratios))}"
    if won == len(ratios) >= LEAST_ROUNDS and gain >= LEAST_GAIN:
        return Verdict(
            challenger,
            True,
            f"beats the preset by {format_gain(gain)} ({spread}; it won {won} of {len(ratios)},"
            f" which equals do by chance {100 * 0.5**won:.0f} % of the time)",
        )
    return Verdict(
        reference,
        False,
        f"confirms the preset: the best other candidate ({challenger}) is {format_gain(gain)}"
        f" ({spread}), {won} of {len(ratios)} rounds won: no gain beyond the noise"
        + ("" if len(ratios) >= LEAST_ROUNDS else "; more --rounds can tell"),
    )


def round_ratios(
    finals: Sequence[FinalRound], reference: Candidate, challenger: Candidate
) -> list[float]:
    """Challenger's rate over the preset's, of each round that has both."""
    rates = {(final.round, final.candidate): final.window.rate for final in finals}
    rounds = sorted({final.round for final in finals})
    return [
        rates[number, challenger] / rates[number, reference]
        for number in rounds
        if (number, challenger) in rates and rates.get((number, reference))
    ]


def format_gain(ratio: float) -> str:
    """+12.0 %."""
    return f"{100 * (ratio - 1):+.1f} %"
