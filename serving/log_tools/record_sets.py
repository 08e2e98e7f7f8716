"""Names two sets of records on the command line and loads them into a temporary DuckDB database."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timezone
from typing import Any

from offpath.errors import ExpectedError, WrongOption
from offpath.handler.prediction_log.packing import DamagedObject
from offpath.handler.stages import Stage
from offpath.serving.log_tools.reading import (
    DOWNLOADS_AT_ONCE,
    MOST_DAMAGED_LINES,
    REST,
    LogStore,
    Period,
    Progress,
    find_damage,
    get_lines,
    parse_time,
)
from offpath.serving.storage import explain

FORM = "URI,since=TIME,until=TIME,model=NAME,version=VERSION"
FILTERS = ("since", "until", "model", "version")
# Each thread holds the text of one part of an object, and DuckDB what it parses from it.
PART_BYTES = 8 << 20
# JSON can express lone surrogates, which make DuckDB fail. The group matches what must stay.
_SURROGATE = re.compile(r"(\\\\|\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w)|\\u[dD][89a-fA-F]\w\w")
# More than this, DuckDB writes to the database's folder.
MEMORY_LIMIT = "1GB"
STAGES = [stage.value for stage in Stage]
_VALUES = ", ".join(f"r.stage_ms.{name} AS {name}_ms" for name in STAGES)
_SUM = " + ".join(f"coalesce(r.stage_ms.{name}, 0)" for name in STAGES)
_TYPES = f"""{{"event_id": "VARCHAR", "inference_time": "VARCHAR", "model": "VARCHAR",
    "version": "VARCHAR", "status": "INTEGER", "error": "VARCHAR", "payload_bytes": "DOUBLE",
    "predictions": [{{"label": "VARCHAR", "probability": "DOUBLE"}}],
    "stage_ms": {{{', '.join(f'"{name}": "DOUBLE"' for name in STAGES)}}}}}"""
# A line that is no record has neither an event id nor a time.
_PARSE = f"""CREATE OR REPLACE TEMP TABLE part AS
    SELECT number, r.event_id, try_cast(r.inference_time AS TIMESTAMP) AS moment, r.model,
        r.version, coalesce(r.status, 200) = 200 AS is_good,
        CASE WHEN is_good THEN coalesce(r.predictions[1].label, '(no label)')
            ELSE coalesce(r.error, 'status ' || r.status) END AS answer,
        CASE WHEN is_good THEN r.predictions[1].probability END AS score,
        r.payload_bytes, {_VALUES}, {_SUM} AS total_ms
    FROM (SELECT number, CASE WHEN json_valid(line) THEN json_transform(line, '{_TYPES}') END AS r
        FROM (SELECT unnest(lines) AS line, unnest(range(1, len(lines) + 1)) AS number
            FROM (SELECT string_split($1, chr(10)) AS lines)))"""
_IS_RECORD = "event_id IS NOT NULL AND moment IS NOT NULL"
_KEEP = f"""SELECT $side AS side, * EXCLUDE number FROM part WHERE {_IS_RECORD}
    AND ($since IS NULL OR moment >= $since) AND ($until IS NULL OR moment < $until)
    AND ($model IS NULL OR model = $model) AND ($version IS NULL OR version = $version)"""


@dataclass(frozen=True)
class RecordSet:
    """Records under a URI, restricted by inference time, model and version."""

    uri: str
    period: Period = Period()
    model: str | None = None
    version: str | None = None


def parse_set(text: str, uri: str = "") -> RecordSet:
    """Parses `URI,since=TIME,until=TIME,model=NAME,version=VERSION`; each part may be missing.

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
def load_sets(
    sets: Mapping[str, RecordSet],
    open_store: Callable[[str], LogStore],
    progress: Progress,
    on_damage: Callable[[str], None],
) -> Iterator[Any]:
    """Yields a DuckDB connection with the table `records`, whose column `side` is a set's name.

    Memory is bounded: the table is in a temporary folder, and an object is read once for all sets.

    Args:
        progress: Called with (objects read, objects in all).
        on_damage: Called with the place of each object or line that is no record, and the reason.

    Raises:
        ExpectedError: A store cannot be read, or the temporary folder is full.
    """
    import duckdb

    with tempfile.TemporaryDirectory(prefix="offpath-report-") as folder:
        try:
            stores = [open_store(uri) for uri in {it.uri: 0 for it in sets.values()}]
            with duckdb.connect(f"{folder}/records.db") as database:
                database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
                database.execute("SET preserve_insertion_order = false")
                # An empty table with the right columns.
                database.execute(_PARSE, [""])
                table = f"CREATE TABLE records AS FROM ({_KEEP}) LIMIT 0"
                database.execute(table, _bind("", RecordSet("")))
                for store in stores:
                    of_store = {n: it for n, it in sets.items() if it.uri == store.uri}
                    _load_store(database, store, of_store, progress, on_damage)
                yield database
        except duckdb.OperationalError as error:
            # The disk is full, or a single value needs more than the memory's limit.
            why = str(error).strip().splitlines()[0]
            raise ExpectedError(f"{why}; set TMPDIR to a disk with room") from error


def _load_store(
    database: Any,
    store: LogStore,
    sets: Mapping[str, RecordSet],
    progress: Progress,
    on_damage: Callable[[str], None],
) -> None:
    names_of: dict[str, list[str]] = {}

    def load(key: str) -> list[str]:
        """Inserts an object's records and returns its damage."""
        damage: list[str] = []
        try:
            done = 0
            for lines in _split_lines(get_lines(store, key)):
                damage += load_part(key, lines, done)
                done += len(lines)
                if len(damage) >= MOST_DAMAGED_LINES:
                    return [*damage[:MOST_DAMAGED_LINES], f"{key}: {REST}"]
        except DamagedObject as error:
            return [f"{key}: {error}"]
        return damage

    def load_part(key: str, lines: list[bytes], done: int) -> list[str]:
        # Bytes that are no UTF-8 become \xNN, which is not JSON either.
        text = b"\n".join(lines).decode(errors="backslashreplace")
        text = _SURROGATE.sub(lambda match: match[1] or r"\ufffd", text)
        with database.cursor() as cursor:
            cursor.execute(_PARSE, [text])
            for name in names_of[key]:
                filters = _bind(name, sets[name])
                cursor.execute(f"INSERT INTO records {_KEEP}", filters)
            bad = cursor.execute(f"SELECT number FROM part WHERE NOT ({_IS_RECORD})")
            numbers = sorted(number for (number,) in bad.fetchall())
        return [
            f"{key} line {done + n}: {find_damage(lines[n - 1])}"
            for n in numbers[:MOST_DAMAGED_LINES]
        ]

    pool = ThreadPoolExecutor(DOWNLOADS_AT_ONCE)
    try:
        for name, one in sets.items():
            for below in one.period.days():
                for key in filter(one.period.may_hold, store.list_keys(below)):
                    names_of.setdefault(key, []).append(name)
        for done, damage in enumerate(pool.map(load, names_of), start=1):
            progress(done, len(names_of))
            for place in damage:
                on_damage(place)
    except Exception as error:
        raise explain(error, store.uri) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _split_lines(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yields the lines in parts of a little more than `PART_BYTES`."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line) + 1
        if size > PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _bind(name: str, one: RecordSet) -> dict[str, Any]:
    """Returns the parameters of `_KEEP`; DuckDB's timestamps are in UTC and have no zone."""
    ends = [one.period.since, one.period.until]
    since, until = (end and end.astimezone(timezone.utc).replace(tzinfo=None) for end in ends)
    filters = {"model": one.model, "version": one.version}
    return {"side": name, "since": since, "until": until, **filters}
