"""Records back out of the bucket, and the check that none is missing and none is double."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from offpath.handler.errors import WrongOption
from offpath.serving.log_tools.objects import LogStore, explain, get_all

_AGO = re.compile(r"(\d+)([smhd])")
_UNIT = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_PARTITION = re.compile(r"dt=(\d{4}-\d\d-\d\d)/hour=(\d\d)/.+\.jsonl(\.gz|\.zst)?")
# A record lies in the partition of the hour in which its segment was opened; a held-back append
# or a clock set right may put it into a neighbour.
SLACK = timedelta(hours=1)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Period:
    """A span of inference times; None is open."""

    since: datetime | None = None
    until: datetime | None = None

    def may_hold(self, key: str) -> bool:
        """Whether an object can hold records of this span, by its key."""
        match = _PARTITION.fullmatch(key)
        if match is None:
            return False
        hour = datetime.fromisoformat(f"{match[1]}T{match[2]}:00:00+00:00")
        after_begin = (
            self.since is None or hour + timedelta(hours=1) + SLACK > self.since
        )
        before_end = self.until is None or hour - SLACK < self.until
        return after_begin and before_end

    def holds(self, record: dict[str, Any]) -> bool:
        """Whether a record's inference time lies in the span; the end is not part of it."""
        if self.since is None and self.until is None:
            return True
        moment = _parse_iso(str(record["inference_time"]))
        after_begin = self.since is None or moment >= self.since
        return after_begin and (self.until is None or moment < self.until)

    def days(self) -> list[str]:
        """Key prefixes to list: days where both ends are known, else everything."""
        if self.since is None:
            return ["dt="]
        until = self.until or datetime.now(timezone.utc)
        first, last = (self.since - SLACK).date(), (until + SLACK).date()
        count = (last - first).days + 1
        return [f"dt={first + timedelta(days=day)}/" for day in range(count)]


def parse_time(text: str) -> datetime:
    """An ISO 8601 time (UTC unless it says otherwise), a date, or a time ago: 90s, 15m, 2h, 7d.

    Raises:
        WrongOption: It is neither.
    """
    match = _AGO.fullmatch(text)
    try:
        if match is None:
            return _parse_iso(text)
        ago = timedelta(**{_UNIT[match[2]]: int(match[1])})
        return datetime.now(timezone.utc) - ago
    except (ValueError, OverflowError) as error:
        raise WrongOption(
            f"time {text!r}: expected ISO 8601 such as 2026-11-21T03:00Z, or a time ago such as "
            "15m, 2h, 7d"
        ) from error


def _parse_iso(text: str) -> datetime:
    # fromisoformat knows the Z from Python 3.11 on.
    moment = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def read_records(
    store: LogStore, period: Period, progress: Progress = lambda done, total: None
) -> Iterator[dict[str, Any]]:
    """The records of a period, object by object in the order of their keys.

    Raises:
        WrongOption: The store cannot be read.
    """
    try:
        keys = [
            key
            for below in period.days()
            for key in store.list_keys(below)
            if period.may_hold(key)
        ]
        for done, (key, lines) in enumerate(get_all(store, keys), start=1):
            progress(done, len(keys))
            for line in lines.splitlines():
                record = json.loads(line)
                if period.holds(record):
                    yield record
    except Exception as error:
        explained = explain(error, store.uri)
        if explained is error:
            raise
        raise explained from error


def keep_one_attempt(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One record of each request that `offpath front` may have sent to several hosts: what follows
    the ~ of an event id is the attempt (conf/nginx-hosts.conf). Remembers an id a request.
    """
    seen: set[str] = set()
    for record in records:
        request, is_attempt, _ = str(record["event_id"]).partition("~")
        if is_attempt and request in seen:
            continue
        seen |= {request} if is_attempt else set()
        yield record


@dataclass(frozen=True)
class Verdict:
    """How a client's list and the bucket compare.

    Attributes:
        asked: Different request ids in the list.
        records: Records read.
        missing: Ids of the list without a record.
        double: Ids with more than one record, of the list or not.
    """

    asked: int
    records: int
    missing: list[str]
    double: list[str]

    @property
    def is_clean(self) -> bool:
        return not self.missing and not self.double


def compare(event_ids: Iterable[str], asked: set[str]) -> Verdict:
    """Counts the bucket's event ids against the ids that a client was answered."""
    counts = Counter(event_ids)
    return Verdict(
        asked=len(asked),
        records=sum(counts.values()),
        missing=sorted(asked - counts.keys()),
        double=sorted(event_id for event_id, count in counts.items() if count > 1),
    )


def parse_request_ids(lines: Iterable[str]) -> set[str]:
    """One id a line, or the JSON lines of `offpath predict --json` (those answered 200).

    Raises:
        WrongOption: No text, a JSON line without `request_id`, or no id at all.
    """
    try:
        texts = [line.strip() for line in lines]
    except UnicodeDecodeError as error:
        raise WrongOption(f"the list of request ids is no text: {error}") from error
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
                f"line {number}: expected a request id, or JSON with request_id and status"
            ) from error
    found.discard("")
    if not found:
        raise WrongOption("the list holds no request id; expected one a line")
    return found
