"""Compares two sets of the log's records: counts, distributions and their distances, and pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offpath.serving.log_tools.record_sets import STAGES

# A record that lies in both sets is no pair. The text after the ~ of an event id names the attempt
# at a request or the copy of a request.
_PAIRS = """CREATE TABLE pairs AS
    SELECT split_part(a.event_id, '~', 1) AS request, a.event_id AS event_id_a,
        b.event_id AS event_id_b, a.answer AS answer_a, a.score AS score_a, b.answer AS answer_b,
        b.score AS score_b, a.answer IS DISTINCT FROM b.answer AS differs
    FROM (FROM records WHERE side = 'a') AS a JOIN (FROM records WHERE side = 'b') AS b
    ON split_part(a.event_id, '~', 1) = split_part(b.event_id, '~', 1)
    WHERE a.event_id <> b.event_id OR a.version IS DISTINCT FROM b.version"""
PAIR = (
    "request",
    "event_id_a",
    "event_id_b",
    "answer_a",
    "score_a",
    "answer_b",
    "score_b",
)
# Two certain answers that differ are the most different; an error counts as certain.
_MOST_DIFFERENT = f"""SELECT {', '.join(PAIR)} FROM pairs ORDER BY CASE
    WHEN differs THEN coalesce(score_a, 1) + coalesce(score_b, 1)
    ELSE coalesce(abs(score_a - score_b), 0) END DESC, event_id_a LIMIT 10"""
_DISAGREEMENTS = """SELECT answer_a, answer_b, count(*) AS pairs FROM pairs WHERE differs
    GROUP BY ALL ORDER BY pairs DESC, answer_a, answer_b LIMIT 10"""
SCORE_BINS = 20
# Ten bins that hold equal shares of A.
EDGES = [share / 10 for share in range(1, 10)]
# A bin with fewer expected records makes the chi-squared approximation of `measure_psi` wrong.
LEAST_EXPECTED = 5
# Column -> quantity.
SPREADS = {"score": "best score", "payload_bytes": "payload bytes"}
SPREADS |= {f"{name}_ms": f"{name} ms" for name in [*STAGES, "total"]}

Count = tuple[Any, int, int]


@dataclass(frozen=True)
class Distance:
    """The population stability index (PSI) of two samples over the same bins.

    Attributes:
        psi: Sum over the bins of (share in B - share in A) * ln(share in B / share in A).
        noise: Value that 95 % of samples of these sizes stay below if nothing has changed.
        bins: Number of bins.
        records_a, records_b: Numbers of values.
    """

    psi: float
    noise: float
    bins: int
    records_a: int
    records_b: int


@dataclass(frozen=True)
class Comparison:
    """Everything that a report shows, as plain data.

    Attributes:
        sets: Of each set: number of records, first and last inference time, records by model and
            version.
        errors: (error type, number in A, number in B), the most frequent first.
        labels: (best label of a prediction, number in A, number in B), the most frequent first.
        scores: (lower end of the best label's probability, number in A, number in B), in
            `SCORE_BINS` equal bins.
        spreads: By quantity, for A and for B: mean, median, 95th percentile and maximum. The
            percentiles are approximate (t-digest).
        distances: Of label, score and payload; None where a set has no values.
        figures: By the names that conditions use; None where a figure is not known.
        disagreements: (answer of A, answer of B, number of pairs), the most frequent first.
        most_different: The pairs whose answers differ most, with both ids, answers and scores.
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


FIGURES = (
    *("requests_a", "requests_b", "error_share_a", "error_share_b"),
    *("label_psi", "score_psi", "payload_psi", "p95_ms_a", "p95_ms_b", "p95_ms_ratio"),
    *("pairs", "disagreement"),
)


def compare_sets(database: Any) -> Comparison:
    """Compares the sides `a` and `b` of the table that `record_sets.load_sets` has made."""
    errors = _count(database, "answer", "NOT is_good")
    labels = _count(database, "answer", "is_good")
    low = f"least(floor(score * {SCORE_BINS}), {SCORE_BINS - 1}) / {SCORE_BINS}"
    spreads = {
        name: {side: _spread(database, column, side) for side in "ab"}
        for column, name in SPREADS.items()
    }
    distances = {"label": measure_psi(merge_rare(labels))}
    for name, column in (("score", "score"), ("payload", "payload_bytes")):
        distances[name] = measure_psi(_count_deciles(database, column))
    database.execute(_PAIRS)
    ((pairs, differing),) = _fetch(
        database, "SELECT count(*), count(*) FILTER (differs) FROM pairs"
    )
    sets = {side: _describe(database, side) for side in "ab"}
    failed = {"a": sum(a for _, a, _ in errors), "b": sum(b for _, _, b in errors)}
    total = spreads["total ms"]
    slow = {side: total[side][2] for side in "ab"}
    psi = {name: found and found.psi for name, found in distances.items()}
    values = (
        *(sets[side]["records"] for side in "ab"),
        *(_divide(failed[side], sets[side]["records"]) for side in "ab"),
        *psi.values(),
        *(slow["a"], slow["b"], _divide(slow["b"], slow["a"])),
        *(pairs, _divide(differing, pairs)),
    )
    return Comparison(
        sets=sets,
        errors=errors,
        labels=labels,
        scores=sorted(_count(database, low, "score IS NOT NULL")),
        spreads=spreads,
        distances=distances,
        figures=dict(zip(FIGURES, values)),
        disagreements=_fetch(database, _DISAGREEMENTS),
        most_different=[
            dict(zip(PAIR, row)) for row in _fetch(database, _MOST_DIFFERENT)
        ],
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
    shares = [
        ((a + 0.5) / (n_a + bins / 2), (b + 0.5) / (n_b + bins / 2)) for a, b in counts
    ]
    psi = sum((b - a) * math.log(b / a) for a, b in shares)
    freedom = max(bins - 1, 1)
    # Wilson and Hilferty's approximation of the 95 % point of chi-squared.
    spread = 2 / (9 * freedom)
    bound = freedom * (1 - spread + 1.6449 * math.sqrt(spread)) ** 3
    return Distance(psi, bound * (1 / n_a + 1 / n_b), bins, n_a, n_b)


def merge_rare(counts: Sequence[Count]) -> list[tuple[int, int]]:
    """Returns the counts of `measure_psi`, with all bins that are too rare for it in one."""
    n_a, n_b = sum(a for _, a, _ in counts), sum(b for _, _, b in counts)
    share = min(n_a, n_b) / max(n_a + n_b, 1)
    often = [(a, b) for _, a, b in counts if (a + b) * share >= LEAST_EXPECTED]
    rest = n_a - sum(a for a, _ in often), n_b - sum(b for _, b in often)
    return [*often, rest] if any(rest) else often


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


def _spread(database: Any, column: str, side: str) -> list[float | None]:
    query = f"""SELECT avg({column}), approx_quantile({column}, 0.5),
        approx_quantile({column}, 0.95), max({column}) FROM records WHERE side = '{side}'"""
    return list(*_fetch(database, query))


def _describe(database: Any, side: str) -> dict[str, Any]:
    query = f"""SELECT count(*), strftime(min(moment), '%Y-%m-%dT%H:%M:%SZ'),
        strftime(max(moment), '%Y-%m-%dT%H:%M:%SZ') FROM records WHERE side = '{side}'"""
    ((records, first, last),) = _fetch(database, query)
    query = f"""SELECT concat_ws(' ', model, version) AS name, count(*) AS n FROM records
        WHERE side = '{side}' GROUP BY name ORDER BY n DESC, name"""
    return {
        "records": records,
        "first": first,
        "last": last,
        "versions": dict(_fetch(database, query)),
    }


def _divide(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
