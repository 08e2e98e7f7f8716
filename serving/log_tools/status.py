"""What waits in a spool, without touching it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.prediction_log.naming import ASIDE_SUFFIX, TORN_SUFFIX
from offpath.handler.prediction_log.owner import is_owner_alive, list_owner_folders
from offpath.handler.prediction_log.segment import list_segments
from offpath.handler.prediction_log.sink_file import read_last_error, read_sink_file
from offpath.serving.log_tools.shipping import list_sink_folders


@dataclass(frozen=True)
class SinkStatus:
    """One sink's part of the spool.

    Attributes:
        uri: Where its segments go; None when nothing says so.
        living, dead: Processes that have segments here.
        segments, spool_bytes: What waits, open segments included.
        oldest_age_s: Since the last append to the oldest segment; None when nothing waits.
        set_aside: Files with torn lines, and what was no segment.
        last_error: The present trouble, None when the last delivery succeeded.
    """

    uri: str | None
    living: int
    dead: int
    segments: int
    spool_bytes: int
    oldest_age_s: float | None
    set_aside: int
    last_error: str | None


def read_status(spool_dir: Path) -> list[SinkStatus]:
    """The status of each sink in a spool."""
    return [_read_sink(folder) for folder in list_sink_folders(spool_dir)]


def _read_sink(folder: Path) -> SinkStatus:
    uri, last_error = _read_notes(folder)
    owners = list_owner_folders(folder)
    alive = [is_owner_alive(path) for path in owners]
    segments = []
    for path in owners:
        segments.extend(list_segments(path))
    waiting = [segment for segment in segments if segment.size_bytes]
    ages = [time.monotonic() - segment.since_s for segment in waiting]
    return SinkStatus(
        uri=uri,
        living=sum(alive),
        dead=len(owners) - sum(alive),
        segments=len(waiting),
        spool_bytes=sum(segment.size_bytes for segment in waiting),
        oldest_age_s=round(max(ages), 1) if ages else None,
        set_aside=sum(
            path.suffix in (TORN_SUFFIX, ASIDE_SUFFIX) for path in folder.iterdir()
        ),
        last_error=last_error,
    )


def _read_notes(folder: Path) -> tuple[str | None, str | None]:
    """(URI, present trouble); an unreadable note is trouble of its own."""
    uri = None
    try:
        settings = read_sink_file(folder)
        uri = settings.uri if settings else None
        error = read_last_error(folder)
    except (OSError, ValueError) as unreadable:
        return uri, str(unreadable)
    return uri, f"{error.get('time')} {error.get('message')}" if error else None
