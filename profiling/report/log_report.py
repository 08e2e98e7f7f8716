"""The report of `offpath logs report`: two sets of the prediction log side by side."""

from __future__ import annotations

from collections.abc import Sequence

from offpath.profiling.core.figures import format_figure, format_share
from offpath.profiling.report.charts import (
    Chart,
    LineChart,
    Series,
    StackedBar,
    StackedChart,
)
from offpath.profiling.report.document import Document, Section, Table
from offpath.serving.log_tools.comparing import SCORE_BINS, Comparison, Count, Distance
from offpath.serving.log_tools.record_sets import STAGES

LISTED_LABELS = 15
CHART_LABELS = 7
SIDES = {"a": "A", "b": "B"}
HOW_TO_READ = (
    "PSI is the population stability index: 0 for equal distributions. Below 0.1 is by custom "
    "small, from 0.25 on large. Noise is what 95 % of samples of these sizes stay below if nothing "
    "has changed, so a PSI below it shows no change. The bins of a number hold a tenth of A each."
)


def make_log_document(
    compared: Comparison,
    named: dict[str, str],
    command: str = "",
    warnings: Sequence[str] = (),
) -> Document:
    """Makes the document of a comparison.

    Args:
        named: The sets by side, as the user named them.
        command: The command line that made the report.
        warnings: What could not be read.
    """
    sections = [
        Section("Distances of B from A", [_show_distances(compared)], HOW_TO_READ),
        Section("Requests and errors", [_show_errors(compared)]),
        Section("Labels", _show_labels(compared)),
        Section("Best score, sizes and times", _show_spreads(compared)),
    ]
    if compared.figures["pairs"]:
        sections.insert(1, _show_pairs(compared))
    return Document(
        "Prediction log: A and B",
        sections,
        command=command,
        facts={SIDES[side]: _describe(compared, side, named[side]) for side in SIDES},
        warnings=[*warnings, *find_doubts(compared)],
    )


def find_doubts(compared: Comparison) -> list[str]:
    """Returns reasons to doubt the figures: an empty set, few records."""
    empty = [
        f"no records: {SIDES[side]} is empty; check its period, model and version"
        for side, one in compared.sets.items()
        if not one["records"]
    ]
    few = [
        f"few records: a PSI of {name} below {format_figure(found.noise)} may be chance with "
        f"{found.records_a:,} and {found.records_b:,} values"
        for name, found in compared.distances.items()
        if found and found.noise > 0.1
    ]
    return empty + few


def _describe(compared: Comparison, side: str, named: str) -> str:
    one = compared.sets[side]
    versions = ", ".join(f"{name} ({n:,})" for name, n in one["versions"].items())
    period = f", {one['first']} to {one['last']}: {versions}" if versions else ""
    return f"{named}: {one['records']:,} records{period}"


def _show_distances(compared: Comparison) -> Table:
    def read(found: Distance) -> str:
        if found.psi <= found.noise:
            return "within noise"
        words = zip((0.1, 0.25), ("small", "moderate"))
        return next((word for bound, word in words if found.psi < bound), "large")

    rows = [
        [
            name,
            read(one),
            *map(format_figure, (one.psi, one.noise)),
            *(f"{count:,}" for count in (one.bins, one.records_a, one.records_b)),
        ]
        for name, one in compared.distances.items()
        if one
    ]
    columns = ["", "reading", "PSI", "noise", "bins", "values in A", "values in B"]
    return Table("", columns, rows, words=2)


def _show_errors(compared: Comparison) -> Table:
    counts = {side: compared.sets[side]["records"] for side in SIDES}
    rows: list[Count] = [
        ("requests", counts["a"], counts["b"]),
        ("predictions", *_sum(compared.labels)),
        *compared.errors,
    ]
    return _show_counts("", rows, (counts["a"], counts["b"]))


def _show_counts(title: str, rows: Sequence[Count], totals: tuple[int, int]) -> Table:
    def share(count: int, total: int) -> str:
        return format_share(count / total) if total else ""

    cells = [
        [str(name), f"{a:,}", f"{b:,}", share(a, totals[0]), share(b, totals[1])]
        for name, a, b in rows
    ]
    return Table(title, ["", "A", "B", "share A", "share B"], cells)


def _sum(counts: Sequence[Count]) -> tuple[int, int]:
    return sum(a for _, a, _ in counts), sum(b for _, _, b in counts)


def _show_labels(compared: Comparison) -> list[Table | Chart]:
    labels = compared.labels
    n_a, n_b = totals = _sum(labels)
    if not n_a or not n_b:
        return [_show_counts("", labels[:LISTED_LABELS], totals)]
    moved = sorted(labels, key=lambda one: -abs(one[1] / n_a - one[2] / n_b))
    others = [("other labels", *_sum(labels[CHART_LABELS:]))]
    shown = [*labels[:CHART_LABELS], *(others if any(others[0][1:]) else [])]
    bars = [
        StackedBar(side, [(str(one[0]), one[index]) for one in shown], f"{total:,}")
        for index, (side, total) in enumerate(zip("AB", totals), start=1)
    ]
    title = f"the {min(len(labels), LISTED_LABELS)} of {len(labels)} labels whose share moved most"
    return [
        StackedChart("Predictions by best label", "share", bars, is_share=True),
        _show_counts(title, moved[:LISTED_LABELS], totals),
    ]


def _show_spreads(compared: Comparison) -> list[Table | Chart]:
    def cells(values: Sequence[float | None]) -> list[str]:
        return ["" if one is None else format_figure(one) for one in values[:3]]

    rows = [
        [name, *cells(sides["a"]), *cells(sides["b"])]
        for name, sides in compared.spreads.items()
    ]
    columns = [
        "",
        *(f"{side} {what}" for side in "AB" for what in ("mean", "p50", "p95")),
    ]
    note = "Stages are of the whole batch that a request was in. Percentiles are approximate."
    table = Table("", columns, [row for row in rows if any(row[1:])], note=note)
    totals = _sum(compared.scores)
    bins = {low: counts for low, *counts in compared.scores}
    lows = [index / SCORE_BINS for index in range(SCORE_BINS)]
    series = [
        Series(
            side,
            [
                (low + 0.5 / SCORE_BINS, bins.get(low, (0, 0))[index] / total)
                for low in lows
            ],
        )
        for index, (side, total) in enumerate(zip("AB", totals))
        if total
    ]
    charts: list[Table | Chart] = [
        LineChart("Probability of the best label", "probability", "share", series)
    ]
    means = {
        side: [
            (name, compared.spreads[f"{name} ms"][side][0] or 0.0) for name in STAGES
        ]
        for side in SIDES
    }
    bars = [
        StackedBar(SIDES[side], parts, format_figure(sum(ms for _, ms in parts)))
        for side, parts in means.items()
    ]
    charts.append(StackedChart("Mean time of a batch by stage", "ms", bars))
    return [*(charts if series else []), table]


def _show_pairs(compared: Comparison) -> Section:
    pairs = int(compared.figures["pairs"] or 0)
    table = [
        [str(a), str(b), f"{count:,}", format_share(count / pairs)]
        for a, b, count in compared.disagreements
    ]
    different = [
        [
            str(one["request"]),
            *(
                _format_answer(one[f"answer_{side}"], one[f"score_{side}"])
                for side in SIDES
            ),
        ]
        for one in compared.most_different
    ]
    share = format_share(compared.figures["disagreement"] or 0.0)
    return Section(
        "Answers to the same request",
        [
            Table(
                "most frequent disagreements",
                ["A", "B", "pairs", "share"],
                table,
                words=2,
            ),
            Table("most different pairs", ["event id", "A", "B"], different, words=3),
        ],
        f"{pairs:,} requests have a record in A and one in B with the same event id (up to a ~). "
        f"A and B disagree on {share} of them.",
    )


def _format_answer(answer: str | None, score: float | None) -> str:
    return f"{answer}" if score is None else f"{answer} {score:.3f}"
