"""The report of `offpath logs report`: two sets of the prediction log side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from offpath.profiling.core.figures import format_figure, format_share
from offpath.profiling.report.charts import (
    Chart,
    LineChart,
    Series,
    StackedBar,
    StackedChart,
)
from offpath.profiling.report.document import Document, Section, format_table
from offpath.serving.log_tools.comparing import (
    SCORE_BINS,
    Comparison,
    Count,
    Distance,
    sum_counts,
)
from offpath.serving.log_tools.record_sets import STAGES

LISTED_LABELS = 15
CHART_LABELS = 7
# From this PSI on, the word for a distance is used.
WORDS = {0.25: "large", 0.1: "moderate", 0.0: "small"}
HOW_TO_READ = (
    "PSI is the population stability index: 0 for equal distributions; by custom, from 0.1 on a"
    " change is moderate, from 0.25 on large. Noise is what 95 % of samples of these sizes stay"
    " below if nothing has changed, so a PSI below it shows no change. Scores and payloads are in"
    " bins that hold a tenth of A each."
)


def make_log_document(
    compared: Comparison, named: Mapping[str, str], command: str, lost: Sequence[str]
) -> Document:
    """Makes the document of a comparison.

    Args:
        compared: What was compared.
        named: The sets `a` and `b` as the user named them.
        command: The command line that made the report.
        lost: Warnings about what could not be read.
    """
    sections = [
        Section("Distances of B from A", _show_distances(compared), note=HOW_TO_READ),
        *(_show_pairs(compared) if compared.figures["pairs"] else []),
        Section("Requests and errors", _show_errors(compared)),
        Section("Labels", _show_labels(compared), list(_draw_labels(compared))),
        Section("Best score, sizes and times", _show_spreads(compared), _draw_spreads(compared)),
    ]
    facts = {side.upper(): _describe(compared, side, named[side]) for side in "ab"}
    warnings = [*lost, *_find_doubts(compared)]
    return Document("Prediction log: A and B", sections, command, facts, {}, warnings)


def _describe(compared: Comparison, side: str, named: str) -> str:
    one = compared.sets[side]
    versions = ", ".join(f"{name}: {n:,}" for name, n in one["versions"].items())
    if not versions:
        return f"{named}: no records"
    return f"{named}: {one['records']:,} records, {one['first']} to {one['last']} ({versions})"


def _find_doubts(compared: Comparison) -> Iterable[str]:
    for side, one in compared.sets.items():
        if not one["records"]:
            yield f"no records: {side.upper()} is empty; check its period, model and version"
    for name, found in compared.distances.items():
        if found and found.noise > 0.1:
            yield (
                f"few records: a PSI of {name} below {format_figure(found.noise)} may be chance"
                f" with {found.values_a:,} and {found.values_b:,} values"
            )


def _read(found: Distance) -> str:
    word = next(word for bound, word in WORDS.items() if found.psi >= bound)
    return word if found.psi > found.noise else "within noise"


def _show_distances(compared: Comparison) -> str:
    columns = ["", "change", "PSI", "noise", "bins", "values in A", "values in B"]
    rows = [
        [
            *(name, _read(one), format_figure(one.psi), format_figure(one.noise)),
            *(f"{count:,}" for count in (one.bins, one.values_a, one.values_b)),
        ]
        for name, one in compared.distances.items()
        if one
    ]
    return format_table(columns, rows, words=2)


def _show_counts(title: str, counts: Sequence[Count], totals: Sequence[int]) -> str:
    rows = [
        [
            str(name),
            *(f"{number:,}" for number in numbers),
            *(format_share(n / total) if total else "" for n, total in zip(numbers, totals)),
        ]
        for name, *numbers in counts
    ]
    return format_table(["", "A", "B", "share A", "share B"], rows, title=title)


def _show_errors(compared: Comparison) -> str:
    requests = [one["records"] for one in compared.sets.values()]
    good = sum_counts(compared.labels)
    counts: list[Count] = [("requests", *requests), ("predictions", *good)]
    return _show_counts("", [*counts, *compared.errors], requests)


def _draw_labels(compared: Comparison) -> Iterable[Chart]:
    labels, totals = compared.labels, sum_counts(compared.labels)
    first, others = labels[:CHART_LABELS], sum_counts(labels[CHART_LABELS:])
    bars = [
        StackedBar(
            side.upper(),
            [
                *((one[0], one[at + 1] / max(totals[at], 1)) for one in first),
                ("other labels", others[at] / max(totals[at], 1)),
            ],
            f"{totals[at]:,}",
        )
        for at, side in enumerate(compared.sets)
    ]
    if labels:
        yield StackedChart("Predictions by best label", "share", bars)


def _show_labels(compared: Comparison) -> str:
    labels, totals = compared.labels, sum_counts(compared.labels)
    n_a, n_b = (max(total, 1) for total in totals)
    moved = sorted(labels, key=lambda one: -abs(one[1] / n_a - one[2] / n_b))
    return _show_counts("labels whose share moved most", moved[:LISTED_LABELS], totals)


def _draw_spreads(compared: Comparison) -> list[Chart]:
    totals, half = sum_counts(compared.scores), 0.5 / SCORE_BINS
    bins = {low: numbers for low, *numbers in compared.scores}
    series = [
        Series(
            side.upper(),
            [
                (low + half, bins.get(low, (0, 0))[at] / max(totals[at], 1))
                for low in (index / SCORE_BINS for index in range(SCORE_BINS))
            ],
        )
        for at, side in enumerate(compared.sets)
    ]
    bars = []
    for side in compared.sets:
        means = {name: compared.spreads[f"{name} ms"][side][0] or 0.0 for name in STAGES}
        sum_ms = format_figure(sum(means.values()))
        bars.append(StackedBar(side.upper(), list(means.items()), sum_ms))
    return [
        LineChart("Probability of the best label", "probability", "share", series),
        StackedChart("Mean time of a batch by stage", "ms", bars),
    ]


def _show_spreads(compared: Comparison) -> str:
    columns = [f"{side} {what}" for side in "AB" for what in ("mean", "p50", "p95")]
    rows = [
        [name, *("" if one is None else format_figure(one) for one in (*a[:3], *b[:3]))]
        for name, (a, b) in ((n, sides.values()) for n, sides in compared.spreads.items())
    ]
    note = "Times are of the whole batch that a request was in. Percentiles are approximate."
    return format_table(["", *columns], rows, note=note)


def _show_pairs(compared: Comparison) -> list[Section]:
    pairs = int(compared.figures["pairs"] or 0)
    disagreements = [
        [str(a), str(b), f"{count:,}", format_share(count / pairs)]
        for a, b, count in compared.disagreements
    ]
    different = []
    for one in compared.most_different:
        answers = ((one[f"answer_{side}"], one[f"score_{side}"]) for side in "ab")
        texts = (f"{name}" if at is None else f"{name} {at:.3f}" for name, at in answers)
        different.append([*texts, one["request"]])
    frequent = format_table(["A", "B", "pairs", "share"], disagreements, words=2)
    note = (
        f"{pairs:,} pairs of a record in A and one in B have the same event id (up to a ~)."
        f" {format_share(compared.figures['disagreement'] or 0.0)} of them disagree."
    )
    most = format_table(["A", "B", "event id"], different, words=2)
    return [
        Section("Answers to the same request", frequent, note=note),
        Section("Most different answers to the same request", most),
    ]
