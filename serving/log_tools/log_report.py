"""Compares two sets of the prediction log's records. DuckDB does the work, in SQL."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from offpath.errors import ExpectedError, WrongOption
from offpath.handler.stages import Stage
from offpath.serving.log_tools.reading import (
    Period,
    Progress,
    open_store_at,
    parse_iso,
    parse_time,
    read_records,
)

FORM = "URI,since=TIME,until=TIME,model=NAME,version=VERSION"
FILTERS = ("since", "until", "model", "version")
# More than this, DuckDB writes to the database's folder.
MEMORY_LIMIT = "1GB"
RECORDS_AT_ONCE = 10_000
# JSON can express lone surrogates, which make DuckDB fail. The group matches what must stay.
_SURROGATE = re.compile(r"(\\\\|\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w)|\\u[dD][89a-fA-F]\w\w")
STAGES = [stage.value for stage in Stage]
_TYPES = json.dumps(
    {
        **{"event_id": "VARCHAR", "inference_time": "TIMESTAMP", "model": "VARCHAR"},
        **{"version": "VARCHAR", "user_id": "VARCHAR", "payload_bytes": "BIGINT"},
        **{"payload_hash": "VARCHAR", "status": "INTEGER", "error": "VARCHAR"},
        "predictions": [{"label": "VARCHAR", "probability": "DOUBLE"}],
        "stage_ms": {name: "DOUBLE" for name in STAGES},
        **{"batch_size": "INTEGER", "extra": "JSON"},
    }
)
# In one place, so that it makes the empty table too.
_RECORDS = f"""SELECT $uri AS uri, r.* FROM (SELECT json_transform(line, '{_TYPES}') AS r
    FROM (SELECT unnest(string_split($lines, chr(10))) AS line) WHERE json_valid(line))"""
_SIDE = f"""SELECT $side AS side, event_id, inference_time, concat_ws(' ', model, version) AS served,
        coalesce(status, 200) = 200 AS is_good,
        CASE WHEN is_good THEN coalesce(predictions[1].label, '(no label)')
            ELSE coalesce(error, 'status ' || status) END AS answer,
        CASE WHEN is_good THEN predictions[1].probability END AS score, payload_bytes,
        {', '.join(f'stage_ms.{name} AS {name}_ms' for name in STAGES)},
        {' + '.join(f'coalesce(stage_ms.{name}, 0)' for name in STAGES)} AS total_ms
    FROM records WHERE uri = $uri AND ($since IS NULL OR inference_time >= $since)
        AND ($until IS NULL OR inference_time < $until) AND ($model IS NULL OR model = $model)
        AND ($version IS NULL OR version = $version)"""
_A_AND_B = "count(*) FILTER (side = 'a') AS a, count(*) FILTER (side = 'b') AS b"
_COUNTS = f"SELECT answer, {_A_AND_B} FROM answers"
_TIME_FORM = "'%Y-%m-%dT%H:%M:%SZ'"
_VERSIONS = f"""SELECT served, count(*) AS n, strftime(min(inference_time), {_TIME_FORM}),
    strftime(max(inference_time), {_TIME_FORM}) FROM answers"""
# The population stability index (PSI): the sum over bins of (share in B - share in A) times
# ln(share in B / share in A). Without a change, it is distributed as (1/n_a + 1/n_b) times
# chi-squared with bins - 1 degrees of freedom (Yurdakul, 2018).
# Half a record is added to each bin, so that an empty one gives a finite value. Labels that are too
# rare for the chi-squared approximation are one bin; scores and payloads have bins that hold equal
# shares of A. The bound is Wilson and Hilferty's approximation of the 95 % point of chi-squared.
_DISTANCES = f"""WITH edges AS (
        SELECT list_distinct(approx_quantile(score, {[n / 10 for n in range(1, 10)]})) AS score,
            list_distinct(approx_quantile(payload_bytes, {[n / 10 for n in range(1, 10)]})) AS bytes
        FROM answers WHERE side = 'a'),
    placed AS (SELECT 'label' AS name, side, answer AS bin FROM answers WHERE is_good
        UNION ALL SELECT 'score', side, len(list_filter(edges.score, lambda e: answers.score > e))
            ::VARCHAR FROM answers, edges WHERE answers.score IS NOT NULL
        UNION ALL SELECT 'payload', side, len(list_filter(bytes, lambda e: payload_bytes > e))
            ::VARCHAR FROM answers, edges WHERE payload_bytes IS NOT NULL),
    counted AS (SELECT name, bin, {_A_AND_B} FROM placed GROUP BY ALL),
    summed AS (SELECT *, sum(a) OVER names AS n_a, sum(b) OVER names AS n_b FROM counted
        WINDOW names AS (PARTITION BY name)),
    merged AS (SELECT name, n_a, n_b, sum(a) AS a, sum(b) AS b, CASE WHEN name <> 'label'
            OR (a + b) * least(n_a, n_b) / (n_a + n_b) >= 5 THEN bin END AS bin
        FROM summed WHERE n_a > 0 AND n_b > 0 GROUP BY name, n_a, n_b, 6),
    shared AS (SELECT *, count(*) OVER names AS bins, (a + 0.5) / (n_a + bins / 2) AS share_a,
            (b + 0.5) / (n_b + bins / 2) AS share_b FROM merged
        WINDOW names AS (PARTITION BY name))
    SELECT name, 2 / (9 * greatest(bins - 1, 1)) AS spread,
        sum((share_b - share_a) * ln(share_b / share_a)),
        (bins - 1) * pow(1 - spread + 1.6449 * sqrt(spread), 3) * (1 / n_a + 1 / n_b),
        bins, n_a::BIGINT, n_b::BIGINT FROM shared GROUP BY name, bins, n_a, n_b"""
# A record that lies in both sets is no pair. The text after the ~ of an event id names the attempt.
_PAIRS = """CREATE TABLE pairs AS SELECT a.answer AS answer_a, b.answer AS answer_b
    FROM (FROM answers WHERE side = 'a') AS a JOIN (FROM answers WHERE side = 'b') AS b
    ON split_part(a.event_id, '~', 1) = split_part(b.event_id, '~', 1)
    WHERE (a.event_id, a.served) IS DISTINCT FROM (b.event_id, b.served)"""
_DISAGREEMENTS = """SELECT answer_a, answer_b, count(*) AS pairs FROM pairs WHERE answer_a <> answer_b
    GROUP BY ALL ORDER BY pairs DESC, answer_a, answer_b LIMIT 10"""
# Name of a quantity -> its column.
SPREADS = {"best score": "score", "payload bytes": "payload_bytes"}
SPREADS |= {f"{name} ms": f"{name}_ms" for name in [*STAGES, "total"]}
_SPREADS = ", ".join(
    f"[avg({one}), approx_quantile({one}, 0.5), approx_quantile({one}, 0.95), max({one})]"
    for one in SPREADS.values()
)
FIGURES = (
    *("requests_a", "requests_b", "error_share_a", "error_share_b"),
    *("label_psi", "score_psi", "payload_psi", "p95_ms_a", "p95_ms_b", "p95_ms_ratio"),
    *("pairs", "disagreement"),
)

Count = tuple[Any, int, int]


@dataclass(frozen=True)
class RecordSet:
    """Records under a URI, restricted by inference time, model and version."""

    uri: str
    period: Period
    model: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Everything that a report shows, as plain data. A count is (name, number in A, number in B).

    Attributes:
        sets: of each set: number of records, first and last inference time, records by version.
        errors: records by error type, the most frequent first.
        labels: predictions by best label, the most frequent first.
        spreads: by quantity, for A and B: mean, p50, p95 and maximum; percentiles are approximate.
        distances: of label, score and payload, where both sets have values: psi, noise (the value
            that 95 % of samples of these sizes stay below if nothing has changed), bins, values.
        figures: by the names in `FIGURES`; None where a figure is not known.
        disagreements: (answer of A, answer of B, number of pairs), the most frequent first.
    """

    sets: dict[str, dict[str, Any]]
    errors: list[Count]
    labels: list[Count]
    spreads: dict[str, dict[str, list[float | None]]]
    distances: dict[str, dict[str, float]]
    figures: dict[str, float | None]
    disagreements: list[tuple[str, str, int]]


def parse_set(text: str, uri: str = "") -> RecordSet:
    """Parses `FORM`, of which each part may be missing.

    Args:
        uri: The URI of a text without one.

    Raises:
        WrongOption: The text has another form, or there is no URI.
    """
    parts = text.split(",")
    if "://" in parts[0]:
        uri = parts.pop(0)
    chosen = dict(part.partition("=")[::2] for part in parts)
    if len(chosen) < len(parts):
        raise WrongOption(f"{text!r}: a filter is given twice; expected {FORM}")
    wrong = [name for name, value in chosen.items() if name not in FILTERS or not value]
    if wrong or not uri:
        why = f"{wrong[0]!r} is no filter with a value" if wrong else "no URI"
        raise WrongOption(f"{text!r}: {why}; expected {FORM}")
    ends = [chosen.get(end) for end in ("since", "until")]
    period = Period(*(parse_time(end) if end else None for end in ends))
    return RecordSet(uri, period, chosen.get("model"), chosen.get("version"))


@contextlib.contextmanager
def open_database() -> Iterator[Any]:
    """Yields a connection to a temporary DuckDB database with an empty table `records`.

    Raises:
        ExpectedError: The temporary folder is full.
    """
    import duckdb

    with tempfile.TemporaryDirectory(prefix="offpath-report-") as folder:
        try:
            with duckdb.connect(f"{folder}/records.db") as database:
                database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
                database.execute("SET preserve_insertion_order = false")
                table = f"CREATE TABLE records AS {_RECORDS}"
                database.execute(table, {"uri": "", "lines": ""})
                yield database
        except duckdb.OperationalError as error:
            # The disk is full, or a single value needs more than the memory's limit.
            why = str(error).strip().splitlines()[0]
            raise ExpectedError(f"{why}; set TMPDIR to a disk with room") from error


def load_records(database: Any, uri: str, records: Iterable[Mapping[str, Any]]) -> None:
    lines = map(_format_line, records)
    while some := list(islice(lines, RECORDS_AT_ONCE)):
        values = {"uri": uri, "lines": "\n".join(some)}
        database.execute(f"INSERT INTO records {_RECORDS}", values)


def _in_utc(moment: datetime) -> datetime:
    """Returns a time without a zone, as DuckDB's timestamps are."""
    return moment.astimezone(timezone.utc).replace(tzinfo=None)


def _format_line(record: Mapping[str, Any]) -> str:
    """Writes a record as JSON that DuckDB accepts."""
    record = {**record, "inference_time": _in_utc(parse_iso(record["inference_time"])).isoformat()}
    try:
        return orjson.dumps(record).decode()
    except orjson.JSONEncodeError:  # a lone surrogate, or a number of more than 64 bits
        return _SURROGATE.sub(lambda match: match[1] or r"\ufffd", json.dumps(record))


def write_parquet(file: Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Writes records in order of time, and returns their number."""
    with open_database() as database:
        load_records(database, "", records)
        name = str(file).replace("'", "''")
        query = f"COPY (SELECT * EXCLUDE uri FROM records ORDER BY inference_time) TO '{name}'"
        ((count,),) = database.execute(f"{query} (FORMAT parquet)").fetchall()
    return int(count)


def compare_sets(
    sets: Mapping[str, RecordSet], progress: Progress, on_damage: Callable[[str], None]
) -> Comparison:
    """Reads and compares the sets `a` and `b`. An object is read once for both.

    Args:
        progress: Called with (objects read, objects in all).
        on_damage: Called with the place of each object or line that is no record, and the reason.

    Raises:
        ExpectedError: A store cannot be read, or the temporary folder is full.
    """
    with open_database() as database:
        for uri in {one.uri: None for one in sets.values()}:
            periods = [one.period for one in sets.values() if one.uri == uri]
            records = read_records(open_store_at(uri), periods, progress, on_damage)
            load_records(database, uri, records)
        for side, one in sets.items():
            ends = [one.period.since, one.period.until]
            since, until = (end and _in_utc(end) for end in ends)
            values = {"side": side, "uri": one.uri, "since": since, "until": until}
            values |= {"model": one.model, "version": one.version}
            table = "CREATE TABLE answers AS" if side == "a" else "INSERT INTO answers"
            database.execute(f"{table} {_SIDE}", values)
        return _compare(database)


def _compare(database: Any) -> Comparison:
    def fetch(query: str) -> list[Any]:
        rows: list[Any] = database.execute(query).fetchall()
        return rows

    sets = {}
    for side in "ab":
        versions = fetch(
            f"{_VERSIONS} WHERE side = '{side}' GROUP BY served ORDER BY n DESC, served"
        )
        sets[side] = {
            "records": sum(n for _, n, *_ in versions),
            "first": min((first for *_, first, _ in versions), default=None),
            "last": max((last for *_, last in versions), default=None),
            "versions": {name: n for name, n, *_ in versions},
        }
    errors, labels = (
        fetch(f"{_COUNTS} WHERE {which} GROUP BY answer ORDER BY a + b DESC, answer")
        for which in ("NOT is_good", "is_good")
    )
    names = ("psi", "noise", "bins", "values_a", "values_b")
    distances = {name: dict(zip(names, found)) for name, _, *found in fetch(_DISTANCES)}
    by_side = [fetch(f"SELECT {_SPREADS} FROM answers WHERE side = '{side}'")[0] for side in "ab"]
    spreads = {name: dict(zip("ab", pair)) for name, *pair in zip(SPREADS, *by_side)}
    database.execute(_PAIRS)
    query = "SELECT count(*), count(*) FILTER (answer_a <> answer_b) FROM pairs"
    ((pairs, differing),) = fetch(query)
    records = [one["records"] for one in sets.values()]
    slow_a, slow_b = (values[2] for values in spreads["total ms"].values())
    values = (
        *records,
        *map(_divide, sum_counts(errors), records),
        *(distances.get(name, {}).get("psi") for name in ("label", "score", "payload")),
        *(slow_a, slow_b, _divide(slow_b, slow_a)),
        *(pairs, _divide(differing, pairs)),
    )
    figures = dict(zip(FIGURES, values))
    return Comparison(sets, errors, labels, spreads, distances, figures, fetch(_DISAGREEMENTS))


def sum_counts(counts: Sequence[Count]) -> tuple[int, int]:
    return sum(a for _, a, _ in counts), sum(b for _, _, b in counts)


def _divide(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
