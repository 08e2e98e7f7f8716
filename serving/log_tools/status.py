"""Reads the state of a spool without changing it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.prediction_log.owner import is_owner_alive, list_owner_folders
from offpath.handler.prediction_log.segment import (
    ASIDE_SUFFIX,
    TORN_SUFFIX,
    list_segments,
)
from offpath.handler.prediction_log.sink_file import read_last_error, read_sink_file
from offpath.serving.log_tools.shipping import list_sink_folders


@dataclass(frozen=True)
class SinkStatus:
    """One sink's part of the spool.

    Attributes:
        uri: Destination of its segments; None if the spool does not name it.
        living: Number of folders that a living process holds: its own, and those it has adopted.
        dead: Number of folders that dead processes left and nobody has adopted yet.
        segments: Number of waiting segments, including open ones.
        spool_bytes: Size of the waiting segments.
        oldest_age_s: Seconds since the last append to the oldest segment; None if none waits.
        set_aside: Number of files with torn lines, or that are not segments.
        last_error: Error of the last delivery; None if it succeeded.
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
    """Returns the status of each sink in a spool.

    Raises:
        WrongOption: The spool does not exist or cannot be read.
    """
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
        set_aside=sum(path.suffix in (TORN_SUFFIX, ASIDE_SUFFIX) for path in folder.iterdir()),
        last_error=last_error,
    )


def _read_notes(folder: Path) -> tuple[str | None, str | None]:
    """Returns URI and last error; a note that cannot be read counts as an error."""
    uri = None
    try:
        settings = read_sink_file(folder)
        uri = settings.uri if settings else None
        error = read_last_error(folder)
    except (OSError, ValueError) as unreadable:
        return uri, str(unreadable)
    return uri, f"{error.get('time')} {error.get('message')}" if error else None
