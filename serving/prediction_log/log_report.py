"""Compares two sets of the prediction log's records. DuckDB does the work, in SQL."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from offpath.errors import ExpectedError, WrongOption
from offpath.handler.prediction_log.record import FIELDS
from offpath.handler.stages import Stage
from offpath.serving.prediction_log.reading import (
    Period,
    Progress,
    open_store_at,
    parse_iso,
    parse_time,
    read_records,
)

SET_FORM = "URI,since=TIME,until=TIME,model=NAME,version=VERSION"
FILTERS = ("since", "until", "model", "version")
# More than this, DuckDB writes to the database's folder.
MEMORY_LIMIT = "1GB"
RECORDS_AT_ONCE = 10_000
# JSON can express lone surrogates, which make DuckDB fail. The group matches what must stay.
_SURROGATE = re.compile(r"(\\\\|\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w)|\\u[dD][89a-fA-F]\w\w")
STAGES = [stage.value for stage in Stage]
_TYPES = json.dumps(
    {
        **{name: "VARCHAR" for name in FIELDS},
        **{"inference_time": "TIMESTAMP", "payload_bytes": "BIGINT", "extra": "JSON"},
        **{"status": "INTEGER", "batch_size": "INTEGER"},
        "predictions": [{"label": "VARCHAR", "probability": "DOUBLE"}],
        "stage_ms": {name: "DOUBLE" for name in STAGES},
    }
)
_RECORDS = f"""SELECT $uri AS uri, r.* FROM (SELECT json_transform(line, '{_TYPES}') AS r
    FROM (SELECT unnest(string_split($lines, chr(10))) AS line) WHERE json_valid(line))"""
_SIDE = f"""SELECT $side AS side, event_id, inference_time AS moment,
        concat_ws(' ', model, version) AS version, coalesce(status, 200) = 200 AS is_good,
        CASE WHEN is_good THEN coalesce(predictions[1].label, '(no label)')
            ELSE coalesce(error, 'status ' || status) END AS answer,
        CASE WHEN is_good THEN predictions[1].probability END AS score,
        payload_bytes::DOUBLE AS payload_bytes,
        {', '.join(f'stage_ms.{name} AS {name}_ms' for name in STAGES)},
        {' + '.join(f'coalesce(stage_ms.{name}, 0)' for name in STAGES)} AS total_ms
    FROM records WHERE uri = $uri AND ($since IS NULL OR inference_time >= $since)
        AND ($until IS NULL OR inference_time < $until) AND ($model IS NULL OR model = $model)
        AND ($version IS NULL OR records.version = $version)"""
_A_AND_B = "count(*) FILTER (side = 'a') AS a, count(*) FILTER (side = 'b') AS b"
_SHARES = "a / nullif(sum(a) OVER (), 0) AS share_a, b / nullif(sum(b) OVER (), 0) AS share_b"
_TENTHS = [n / 10 for n in range(1, 10)]
# The population stability index (PSI): the sum over bins of (share in B - share in A) times
# ln(share in B / share in A). Without a change, it is distributed as (1/n_a + 1/n_b) times
# chi-squared with bins - 1 degrees of freedom (Yurdakul, 2018); the noise is that distribution's
# 95 % point, by Wilson and Hilferty's approximation. Half a record is added to each bin, so that an
# empty one gives a finite value. Labels that are too rare for the approximation are one bin; scores
# and payloads have bins that hold equal shares of A.
_DISTANCES = f"""CREATE TABLE distances AS WITH edges AS (
        SELECT list_distinct(approx_quantile(score, {_TENTHS})) AS scores,
            list_distinct(approx_quantile(payload_bytes, {_TENTHS})) AS bytes
        FROM answers WHERE side = 'a'),
    placed AS (SELECT 'label' AS name, side, answer AS bin FROM answers WHERE is_good
        UNION ALL SELECT 'score', side, len(list_filter(scores, lambda e: score > e))::VARCHAR
            FROM answers, edges WHERE score IS NOT NULL
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
        WINDOW names AS (PARTITION BY name)),
    measured AS (SELECT name, n_a, n_b, bins, 2 / (9 * greatest(bins - 1, 1)) AS spread,
        sum((share_b - share_a) * ln(share_b / share_a)) AS psi,
        (bins - 1) * pow(1 - spread + 1.6449 * sqrt(spread), 3) * (1 / n_a + 1 / n_b) AS noise
        FROM shared GROUP BY name, n_a, n_b, bins)
    SELECT name, CASE WHEN psi <= noise THEN 'within noise' WHEN psi >= 0.25 THEN 'large'
        WHEN psi >= 0.1 THEN 'moderate' ELSE 'small' END AS change, psi, noise, bins,
        n_a::BIGINT AS values_a, n_b::BIGINT AS values_b FROM measured"""
# A record that lies in both sets is no pair. The text after the ~ of an event id names the attempt.
_PAIRS = """CREATE TABLE pairs AS SELECT a.answer AS a, b.answer AS b
    FROM (FROM answers WHERE side = 'a') AS a JOIN (FROM answers WHERE side = 'b') AS b
    ON split_part(a.event_id, '~', 1) = split_part(b.event_id, '~', 1)
    WHERE (a.event_id, a.version) IS DISTINCT FROM (b.event_id, b.version)"""
_QUANTITIES = ["score", "payload_bytes", *(f"{name}_ms" for name in [*STAGES, "total"])]
_SPREADS = ", ".join(
    f"avg(value) FILTER (side = '{side}') AS mean_{side}, approx_quantile(value, 0.5) FILTER "
    f"(side = '{side}') AS p50_{side}, approx_quantile(value, 0.95) FILTER (side = '{side}') "
    f"AS p95_{side}"
    for side in "ab"
)
# Table -> query. Percentiles are approximate.
_QUERIES = {
    "figures": f"""SELECT *, p95_ms_b / nullif(p95_ms_a, 0) AS p95_ms_ratio,
        (SELECT count(*) FROM pairs) AS pairs,
        (SELECT avg((a <> b)::INTEGER) FROM pairs) AS disagreement FROM (SELECT
        {', '.join(f"count(*) FILTER (side = '{one}') AS requests_{one}" for one in 'ab')},
        {', '.join(f"avg((NOT is_good)::INTEGER) FILTER (side = '{one}') AS error_share_{one}"
            for one in 'ab')},
        {', '.join(f"(SELECT any_value(psi) FROM distances WHERE name = '{one}') AS {one}_psi"
            for one in ('label', 'score', 'payload'))},
        {', '.join(f"approx_quantile(total_ms, 0.95) FILTER (side = '{one}') AS p95_ms_{one}"
            for one in 'ab')} FROM answers)""",
    "sets": """SELECT side, version, count(*) AS records,
        strftime(min(moment), '%Y-%m-%dT%H:%M:%SZ') AS first,
        strftime(max(moment), '%Y-%m-%dT%H:%M:%SZ') AS last
        FROM answers GROUP BY side, version ORDER BY side, records DESC, version""",
    "distances": "FROM distances ORDER BY name",
    "disagreements": """SELECT a, b, count(*) AS pairs,
        count(*) / (SELECT count(*) FROM pairs) AS share_of_pairs
        FROM pairs WHERE a <> b GROUP BY a, b ORDER BY pairs DESC, a, b LIMIT 10""",
    "errors": f"""SELECT *, {_SHARES} FROM (SELECT if(is_good, '(none)', answer) AS error,
        {_A_AND_B} FROM answers GROUP BY error) ORDER BY error <> '(none)', a + b DESC, error""",
    "labels": f"""SELECT *, {_SHARES} FROM (SELECT answer AS label, {_A_AND_B} FROM answers
        WHERE is_good GROUP BY answer) ORDER BY
        abs(coalesce(share_a, 0) - coalesce(share_b, 0)) DESC, a + b DESC, label LIMIT 15""",
    "spreads": f"""SELECT quantity, {_SPREADS} FROM (UNPIVOT answers ON {', '.join(_QUANTITIES)}
        INTO NAME quantity VALUE value) GROUP BY quantity
        ORDER BY list_position({_QUANTITIES}, quantity)""",
}

Table = list[dict[str, Any]]


@dataclass(frozen=True)
class RecordSet:
    """Records under a URI, restricted by inference time, model and version."""

    uri: str
    period: Period
    model: str | None = None
    version: str | None = None


def parse_set(text: str, uri: str = "") -> RecordSet:
    """Parses `SET_FORM`, of which each part may be missing.

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
        raise WrongOption(f"{text!r}: a filter is given twice; expected {SET_FORM}")
    wrong = [name for name, value in chosen.items() if name not in FILTERS or not value]
    if wrong or not uri:
        why = f"{wrong[0]!r} is no filter with a value" if wrong else "no URI"
        raise WrongOption(f"{text!r}: {why}; expected {SET_FORM}")
    since, until = (chosen.get(end) and parse_time(chosen[end]) for end in ("since", "until"))
    return RecordSet(uri, Period(since or None, until or None), *map(chosen.get, FILTERS[2:]))


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
    if not record["inference_time"].endswith("Z"):  # DuckDB reads over another zone
        moment = _in_utc(parse_iso(record["inference_time"])).isoformat()
        record = {**record, "inference_time": moment}
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
) -> dict[str, Table]:
    """Reads and compares the sets `a` and `b`; returns the rows of each table of the report.

    An object is read once for both sets. `figures` has one row.

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
        for query in (_DISTANCES, _PAIRS):
            database.execute(query)
        tables = {}
        for name, query in _QUERIES.items():
            found = database.execute(query)
            columns = [column[0] for column in found.description]
            tables[name] = [dict(zip(columns, row)) for row in found.fetchall()]
        return tables
