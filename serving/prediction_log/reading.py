"""Reads the log's records from a bucket or a folder, and checks that none is missing or double."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from offpath.errors import ExpectedError, WrongOption
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.packing import DamagedObject, unpack_lines
from offpath.handler.prediction_log.segment import MAX_OBJECT_BYTES
from offpath.handler.prediction_log.sinks import split_file_uri, split_s3_uri
from offpath.serving.printable import printable
from offpath.serving.storage import S3, Storage, explain, read_s3_options

_AGO = re.compile(r"(\d+)([smhd])")
_UNIT = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_PARTITION = re.compile(r"dt=(\d{4}-\d\d-\d\d)/hour=(\d\d)/.+\.jsonl\.gz")
# A record lies in the partition of the hour in which its segment was opened. A delayed append or a
# corrected clock may put it into a neighbouring hour.
SLACK = timedelta(hours=1)
LISTED_DAMAGE = 20
DOWNLOADS_AT_ONCE = 8
# Of one object, so that a hostile one does not fill the memory with its errors.
MAX_DAMAGED_LINES = 1000
REST = f"{MAX_DAMAGED_LINES} of its lines are no records, and the rest was not read"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Period:
    """A span of inference times. None leaves an end open."""

    since: datetime | None = None
    until: datetime | None = None

    def may_hold(self, key: str) -> bool:
        """Tells by an object's key whether it can hold records of this span."""
        match = _PARTITION.fullmatch(key)
        if match is None:
            return False
        hour = datetime.fromisoformat(f"{match[1]}T{match[2]}:00:00+00:00")
        after_begin = self.since is None or hour + timedelta(hours=1) + SLACK > self.since
        before_end = self.until is None or hour - SLACK < self.until
        return after_begin and before_end

    def holds(self, record: dict[str, Any]) -> bool:
        """Tells whether a record's inference time lies in the span, which excludes its end."""
        if self.since is None and self.until is None:
            return True
        moment = parse_iso(str(record["inference_time"]))
        after_begin = self.since is None or moment >= self.since
        return after_begin and (self.until is None or moment < self.until)

    def days(self) -> list[str]:
        """Returns the key prefixes to list: single days if `since` is known, else everything."""
        if self.since is None:
            return ["dt="]
        until = self.until or datetime.now(timezone.utc)
        first, last = (self.since - SLACK).date(), (until + SLACK).date()
        count = (last - first).days + 1
        return [f"dt={first + timedelta(days=day)}/" for day in range(count)]


def parse_time(text: str) -> datetime:
    """Parses an ISO 8601 time (UTC by default), a date, or a time ago: 90s, 15m, 2h, 7d.

    Raises:
        WrongOption: The text is none of these.
    """
    match = _AGO.fullmatch(text)
    try:
        if match is None:
            return parse_iso(text)
        ago = timedelta(**{_UNIT[match[2]]: int(match[1])})
        return datetime.now(timezone.utc) - ago
    except (ValueError, OverflowError) as error:
        raise WrongOption(
            f"{text!r} is not a time; expected ISO 8601 such as 2026-11-21T03:00Z, or a time ago "
            "such as 15m, 2h, 7d"
        ) from error


def parse_iso(text: str) -> datetime:
    # fromisoformat accepts the Z only from Python 3.11 on.
    moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def refuse_damage(text: str) -> None:
    """Raises an ExpectedError for a part of the log that cannot be read."""
    raise ExpectedError(text)


def read_records(
    store: LogStore,
    periods: Sequence[Period] = (Period(),),
    progress: Progress = lambda done, total: None,
    on_damage: Callable[[str], None] = refuse_damage,
) -> Iterator[dict[str, Any]]:
    """Yields the records of any of the periods, object by object in the order of their keys.

    Args:
        progress: Called with (objects read, objects in all).
        on_damage: Called with the place of each object or line that is no record, and the reason.

    Raises:
        WrongOption: The store cannot be read, or has no object of a log at all.
    """
    try:
        found = {
            key: None
            for period in periods
            for below in period.days()
            for key in filter(period.may_hold, store.list_keys(below))
        }
        keys = sorted(found)
        if not keys and store.is_empty():
            raise WrongOption(
                f"there is no prediction log at {store.uri!r}: no name begins with dt=; check "
                "bucket and prefix, or wait until a worker has delivered its first records"
            )
        for done, (key, lines) in enumerate(get_all(store, keys), start=1):
            progress(done, len(keys))
            if isinstance(lines, DamagedObject):
                on_damage(f"{key}: {lines}")
                continue
            damaged = 0
            for number, line in enumerate(lines, start=1):
                try:
                    record = _parse_record(line)
                except (ValueError, RecursionError) as error:
                    on_damage(f"{key} line {number}: {error}")
                    damaged += 1
                    if damaged == MAX_DAMAGED_LINES:
                        on_damage(f"{key}: {REST}")
                        break
                    continue
                if any(period.holds(record) for period in periods):
                    yield record
    except Exception as error:
        explained = explain(error, store.uri)
        if explained is error:
            raise
        raise explained from error


def _parse_record(line: bytes) -> dict[str, Any]:
    """Parses a line of the log.

    Raises:
        ValueError: the line is not JSON, or lacks what each record has.
        RecursionError: its JSON is nested too deeply.
    """
    record = json.loads(line.decode())
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    for name in ("event_id", "inference_time"):
        if not isinstance(record.get(name), str):
            raise ValueError(f"{name} is not a text")
    parse_iso(record["inference_time"])
    return record


def describe_damage(damage: list[str]) -> str:
    listed = "\n  ".join(printable(text) for text in damage[:LISTED_DAMAGE])
    return (
        f"{len(damage)} objects or lines of the log cannot be read, all others were:"
        f"\n  {listed}"
    )


def in_order_of_time(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Sorts records by inference time; what does not fit into SQLite's cache waits on disk."""
    with contextlib.closing(sqlite3.connect("")) as database:
        database.execute("CREATE TABLE records (moment REAL, record TEXT)")
        rows = ((parse_iso(it["inference_time"]).timestamp(), json.dumps(it)) for it in records)
        database.executemany("INSERT INTO records VALUES (?, ?)", rows)
        for (record,) in database.execute("SELECT record FROM records ORDER BY moment, rowid"):
            yield json.loads(record)


@dataclass(frozen=True)
class Verification:
    """Result of comparing a client's list of request ids with the bucket.

    Attributes:
        asked: Number of different request ids in the list.
        records: Number of records read.
        missing: Ids of the list without a record.
        double: Ids with more than one record, in the list or not.
    """

    asked: int
    records: int
    missing: list[str]
    double: list[str]

    @property
    def is_clean(self) -> bool:
        return not self.missing and not self.double


def name_reply(record: Mapping[str, Any]) -> str:
    """Returns model, version and event id: a request and its copy to a shadow share the id."""
    return f"{record.get('model')} {record.get('version')} {record['event_id']}"


def compare(answers: Iterable[str], asked: set[str]) -> Verification:
    """Compares a bucket's `answers` (`name_reply`, or event ids) with a client's request ids."""
    counts = Counter(answers)
    found = {answer.rpartition(" ")[2] for answer in counts}
    double = {answer.rpartition(" ")[2] for answer, n in counts.items() if n > 1}
    return Verification(
        asked=len(asked),
        records=sum(counts.values()),
        missing=sorted(asked - found),
        double=sorted(double),
    )


def parse_request_ids(lines: Iterable[str]) -> set[str]:
    """Reads one id per line, or the JSON lines of `offpath predict --json` with status 200.

    Raises:
        WrongOption: The list is not text, has a JSON line without `request_id`, or has no id.
    """
    try:
        texts = [line.strip() for line in lines]
    except UnicodeDecodeError as error:
        raise WrongOption(f"the list of request ids is not text: {error}") from error
    found = set()
    for number, text in enumerate(texts, start=1):
        if not text.startswith("{"):
            found.add(text)
            continue
        try:
            row = json.loads(text)
            if row.get("status", 200) == 200:
                found.add(str(row["request_id"]))
        except (ValueError, KeyError) as error:
            raise WrongOption(
                f"line {number} is neither a request id nor JSON with request_id and status"
            ) from error
    found.discard("")
    if not found:
        raise WrongOption("the list has no request ids; expected one per line")
    return found


@dataclass(frozen=True)
class LogStore:
    """Objects under a sink's URI. Keys are relative to the URI.

    Attributes:
        uri: the sink's URI.
        place: name of that place in the storage: a folder, or s3://BUCKET/PREFIX.
    """

    uri: str
    place: str
    storage: Storage

    def list_keys(self, below: str) -> Iterator[str]:
        """Yields the keys that start with `below`, in order."""
        if not self.place.startswith(S3) and not Path(self.place).is_dir():
            raise WrongOption(f"there is no folder {self.place!r}")
        start = len(self.place) + 1
        yield from sorted(name[start:] for name in self.storage.list(self.place, below))

    def is_empty(self) -> bool:
        return next(self.storage.list(self.place, "dt="), None) is None

    def get(self, key: str) -> bytes:
        """Returns an object as it is stored.

        Raises:
            DamagedObject: it is larger than `MAX_OBJECT_BYTES`, or cannot be read.
        """
        try:
            return self.storage.read(f"{self.place}/{key}", MAX_OBJECT_BYTES)
        except OSError as error:
            raise DamagedObject(f"it cannot be read: {error.strerror or error}") from error


def open_store_at(uri: str) -> LogStore:
    """Opens the store at a URI; for S3, the environment names the region and the endpoint.

    Raises:
        ExpectedError: the URI or the endpoint is not valid, boto3 is not installed, or it lacks a
            region.
    """
    try:
        settings = PredictionLogSettings.from_mapping({"uri": uri}, {})
    except ValueError as error:
        raise WrongOption(str(error).replace("prediction_log.uri", "URI")) from error
    if settings.is_off:
        raise WrongOption(
            f"{uri!r} stores no records; expected s3://BUCKET/PREFIX or file:///FOLDER"
        )
    # A user waits for the answer, so nothing is repeated for a minute.
    storage = Storage(read_s3_options(), attempts=1)
    if urlsplit(settings.uri).scheme == "file":
        return LogStore(settings.uri, str(split_file_uri(settings.uri)), storage)
    bucket, prefix = split_s3_uri(settings.uri)
    try:
        storage.open()
    except ValueError as error:  # from botocore, for an endpoint that is not a URL
        raise WrongOption(f"{settings.uri}: {error}") from error
    except Exception as error:
        raise explain(error, settings.uri) from error
    return LogStore(settings.uri, f"{S3}{bucket}/{prefix}".rstrip("/"), storage)


def get_all(
    store: LogStore, keys: list[str]
) -> Iterator[tuple[str, Iterator[bytes] | DamagedObject]]:
    """Yields (key, lines or damage) of the objects in order, and downloads some objects ahead.

    An object is checked as a whole. Reading its lines unpacks them again.
    """

    def get(key: str) -> Iterator[bytes] | DamagedObject:
        try:
            stored = store.get(key)
            for _ in unpack_lines(stored):
                pass
            return unpack_lines(stored)
        except DamagedObject as error:
            return error

    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        for start in range(0, len(keys), DOWNLOADS_AT_ONCE):
            some = keys[start : start + DOWNLOADS_AT_ONCE]
            yield from zip(some, pool.map(get, some))
