"""Compares two sets of the log's records: counts, distributions and their distances, and pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offpath.serving.log_tools.record_sets import STAGES

# A record that lies in both sets is no pair. The text after the ~ of an event id names the attempt.
_PAIRS = """CREATE TABLE pairs AS
    SELECT split_part(a.event_id, '~', 1) AS request, a.event_id AS event_id_a,
        b.event_id AS event_id_b, a.answer AS answer_a, a.score AS score_a, b.answer AS answer_b,
        b.score AS score_b, a.answer IS DISTINCT FROM b.answer AS differs
    FROM (FROM records WHERE side = 'a') AS a JOIN (FROM records WHERE side = 'b') AS b
    ON split_part(a.event_id, '~', 1) = split_part(b.event_id, '~', 1)
    WHERE (a.event_id, a.model, a.version) IS DISTINCT FROM (b.event_id, b.model, b.version)"""
PAIR = ("request", "event_id_a", "event_id_b", "answer_a", "score_a", "answer_b", "score_b")
# Two certain answers that differ are the most different; an error counts as certain.
_MOST_DIFFERENT = f"""SELECT {', '.join(PAIR)} FROM pairs ORDER BY CASE
    WHEN differs THEN coalesce(score_a, 1) + coalesce(score_b, 1)
    ELSE coalesce(abs(score_a - score_b), 0) END DESC, event_id_a LIMIT 10"""
_DISAGREEMENTS = """SELECT answer_a, answer_b, count(*) AS pairs FROM pairs WHERE differs
    GROUP BY ALL ORDER BY pairs DESC, answer_a, answer_b LIMIT 10"""
SCORE_BINS = 20
_LOW = f"least(floor(score * {SCORE_BINS}), {SCORE_BINS - 1}) / {SCORE_BINS}"
# Ten bins that hold equal shares of A.
EDGES = [share / 10 for share in range(1, 10)]
# A bin with fewer expected records makes the chi-squared approximation of `measure_psi` wrong.
LEAST_EXPECTED = 5
# Column -> quantity.
SPREADS = {"score": "best score", "payload_bytes": "payload bytes"}
SPREADS |= {f"{name}_ms": f"{name} ms" for name in [*STAGES, "total"]}
FIGURES = (
    *("requests_a", "requests_b", "error_share_a", "error_share_b"),
    *("label_psi", "score_psi", "payload_psi", "p95_ms_a", "p95_ms_b", "p95_ms_ratio"),
    *("pairs", "disagreement"),
)

Count = tuple[Any, int, int]


@dataclass(frozen=True)
class Distance:
    """The population stability index (PSI) of two samples over the same bins.

    Attributes:
        psi: Sum over the bins of (share in B - share in A) * ln(share in B / share in A).
        noise: Value that 95 % of samples of these sizes stay below if nothing has changed.
        bins: Number of bins.
        values_a, values_b: Sizes of the samples.
    """

    psi: float
    noise: float
    bins: int
    values_a: int
    values_b: int


@dataclass(frozen=True)
class Comparison:
    """Everything that a report shows, as plain data. A count is (name, number in A, number in B).

    Attributes:
        sets: Of each set: number of records, first and last inference time, records by version.
        errors: Records by error type, the most frequent first.
        labels: Predictions by best label, the most frequent first.
        scores: Predictions by the best label's probability: lower ends of `SCORE_BINS` equal bins.
        spreads: By quantity, for A and B: mean, p50, p95 and maximum; percentiles are approximate.
        distances: Of label, score and payload; None where a set has no values.
        figures: By the names in `FIGURES`; None where a figure is not known.
        disagreements: (answer of A, answer of B, number of pairs), the most frequent first.
        most_different: The pairs whose answers differ most, by the names in `PAIR`.
    """

    sets: dict[str, dict[str, Any]]
    errors: list[Count]
    labels: list[Count]
    scores: list[Count]
    spreads: dict[str, dict[str, list[float | None]]]
    distances: dict[str, Distance | None]
    figures: dict[str, float | None]
    disagreements: list[tuple[str, str, int]]
    most_different: list[dict[str, Any]]


def compare_sets(database: Any) -> Comparison:
    """Compares the sides `a` and `b` of the table that `record_sets.load_sets` has made."""
    sets = {side: _describe(database, side) for side in "ab"}
    errors = _count(database, "answer", "NOT is_good")
    labels = _count(database, "answer", "is_good")
    spreads = _measure_spreads(database)
    distances = {"label": measure_psi(merge_rare(labels))}
    for name, column in (("score", "score"), ("payload", "payload_bytes")):
        distances[name] = measure_psi(_count_deciles(database, column))
    database.execute(_PAIRS)
    query = "SELECT count(*), count(*) FILTER (differs) FROM pairs"
    ((pairs, differing),) = _fetch(database, query)
    records = [one["records"] for one in sets.values()]
    slow_a, slow_b = (values[2] for values in spreads["total ms"].values())
    values = (
        *records,
        *map(_divide, sum_counts(errors), records),
        *(found and found.psi for found in distances.values()),
        *(slow_a, slow_b, _divide(slow_b, slow_a)),
        *(pairs, _divide(differing, pairs)),
    )
    return Comparison(
        sets=sets,
        errors=errors,
        labels=labels,
        scores=sorted(_count(database, _LOW, "score IS NOT NULL")),
        spreads=spreads,
        distances=distances,
        figures=dict(zip(FIGURES, values)),
        disagreements=_fetch(database, _DISAGREEMENTS),
        most_different=[dict(zip(PAIR, row)) for row in _fetch(database, _MOST_DIFFERENT)],
    )


def measure_psi(counts: Sequence[tuple[int, int]]) -> Distance | None:
    """Measures how far B's distribution is from A's; None without values on one side.

    Without a change, PSI is distributed as (1/n_a + 1/n_b) times chi-squared with bins - 1 degrees
    of freedom (Yurdakul, Statistical Properties of Population Stability Index, 2018). Half a record
    is added to each bin, so that an empty one gives a finite value.

    Args:
        counts: Numbers of values in A and in B, of each bin.
    """
    n_a, n_b = sum(a for a, _ in counts), sum(b for _, b in counts)
    if not n_a or not n_b:
        return None
    bins = len(counts)
    wholes = n_a + bins / 2, n_b + bins / 2
    shares = [((a + 0.5) / wholes[0], (b + 0.5) / wholes[1]) for a, b in counts]
    psi = sum((b - a) * math.log(b / a) for a, b in shares)
    # Wilson and Hilferty's approximation of the 95 % point of chi-squared.
    spread = 2 / (9 * max(bins - 1, 1))
    bound = (bins - 1) * (1 - spread + 1.6449 * math.sqrt(spread)) ** 3
    return Distance(psi, bound * (1 / n_a + 1 / n_b), bins, n_a, n_b)


def merge_rare(counts: Sequence[Count]) -> list[tuple[int, int]]:
    """Returns the counts of `measure_psi`, with all bins that are too rare for it in one."""
    n_a, n_b = sum_counts(counts)
    share = min(n_a, n_b) / max(n_a + n_b, 1)
    often = [one for one in counts if (one[1] + one[2]) * share >= LEAST_EXPECTED]
    often_a, often_b = sum_counts(often)
    merged = [(a, b) for _, a, b in often]
    rest = n_a - often_a, n_b - often_b
    return [*merged, rest] if any(rest) else merged


def sum_counts(counts: Sequence[Count]) -> tuple[int, int]:
    return sum(a for _, a, _ in counts), sum(b for _, _, b in counts)


def _fetch(database: Any, query: str) -> list[Any]:
    rows: list[Any] = database.execute(query).fetchall()
    return rows


def _count(database: Any, value: str, where: str) -> list[Count]:
    query = f"""SELECT {value} AS value, count(*) FILTER (side = 'a') AS a,
        count(*) FILTER (side = 'b') AS b FROM records WHERE {where}
        GROUP BY value ORDER BY a + b DESC, value"""
    return _fetch(database, query)


def _count_deciles(database: Any, column: str) -> list[tuple[int, int]]:
    query = f"""SELECT list_distinct(approx_quantile({column}, {EDGES})) FROM records
        WHERE side = 'a'"""
    ((edges,),) = _fetch(database, query)
    bins = " + ".join(f"({column} > {edge!r})::INTEGER" for edge in edges or [])
    counts = _count(database, bins or "0", f"{column} IS NOT NULL")
    return [(a, b) for _, a, b in counts]


def _measure_spreads(database: Any) -> dict[str, dict[str, list[float | None]]]:
    def measure(column: str) -> str:
        percentiles = (f"approx_quantile({column}, {share})" for share in (0.5, 0.95))
        return f"[avg({column}), {', '.join(percentiles)}, max({column})]"

    query = ", ".join(map(measure, SPREADS))
    rows = {
        side: _fetch(database, f"SELECT {query} FROM records WHERE side = '{side}'")[0]
        for side in "ab"
    }
    return {
        name: {side: row[index] for side, row in rows.items()}
        for index, name in enumerate(SPREADS.values())
    }


def _describe(database: Any, side: str) -> dict[str, Any]:
    form = "'%Y-%m-%dT%H:%M:%SZ'"
    query = f"""SELECT concat_ws(' ', model, version) AS name, count(*) AS n,
        strftime(min(moment), {form}), strftime(max(moment), {form})
        FROM records WHERE side = '{side}' GROUP BY name ORDER BY n DESC, name"""
    rows = _fetch(database, query)
    return {
        "records": sum(row[1] for row in rows),
        "first": min((row[2] for row in rows), default=None),
        "last": max((row[3] for row in rows), default=None),
        "versions": {row[0]: row[1] for row in rows},
    }


def _divide(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
