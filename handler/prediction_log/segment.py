"""A segment: a file of JSON Lines in the spool that becomes one object of the sink.

A segment is `<sink>/<host>-<pid>-<start>/<YYYYMMDDTHH>-<seq>.jsonl.gz.spool` in the spool and
`dt=YYYY-MM-DD/hour=HH/<host>-<pid>-<start>-<seq>.jsonl.gz` under the sink's prefix. Nothing else
goes into the key: whoever ships a segment, however often, writes the same object. A segment is open
while it grows, then sealed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

SPOOL_SUFFIX = ".spool"
TORN_SUFFIX = ".torn"
ASIDE_SUFFIX = ".aside"
# Memory of whoever reads a segment or an object. Ours have 8 MiB unless the settings say otherwise.
MAX_OBJECT_BYTES = 128 << 20
# Errors of a disk that takes no more data.
FULL = (errno.ENOSPC, errno.EDQUOT)

_SEGMENT = re.compile(r"(?P<hour>\d{8}T\d{2})-(?P<sequence>\d{6,})\.jsonl\.gz\.spool")


@dataclass(frozen=True)
class SegmentName:
    """The identity of a segment: its writer, the hour (UTC) of its opening, and its number."""

    owner: str
    hour: str
    sequence: int

    @property
    def file_name(self) -> str:
        return f"{self.hour}-{self.sequence:06d}.jsonl.gz{SPOOL_SUFFIX}"

    @property
    def key(self) -> str:
        day = f"{self.hour[:4]}-{self.hour[4:6]}-{self.hour[6:8]}"
        return f"dt={day}/hour={self.hour[9:]}/{self.owner}-{self.sequence:06d}.jsonl.gz"


def parse_segment_name(owner: str, file_name: str) -> SegmentName | None:
    """Parses the name of a file in the spool; None for files that are not segments."""
    match = _SEGMENT.fullmatch(file_name)
    if match is None:
        return None
    return SegmentName(owner, match["hour"], int(match["sequence"]))


def format_hour(now: datetime | None = None) -> str:
    """Formats the hour in UTC in which a segment is opened, for instance 20261121T03."""
    return (now or datetime.now(timezone.utc)).strftime("%Y%m%dT%H")


class OpenSegment:
    """The segment that grows. Only `append` runs on the request's path.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(
        self,
        folder: Path,
        name: SegmentName,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.path = folder / name.file_name
        self.size_bytes = 0
        self.records = 0
        self.first_append_s: float | None = None
        self._clock = clock
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._fd = os.open(self.path, flags, 0o600)

    def append(self, data: bytes, records: int, is_synced: bool) -> None:
        """Hands complete lines to the kernel in one write(2), all of them or none.

        Raises:
            OSError: No part of `data` was kept.
        """
        written = os.write(self._fd, data)
        if written != len(data):
            # The disk filled up in the middle of a line.
            os.ftruncate(self._fd, self.size_bytes)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        if self.first_append_s is None:
            self.first_append_s = self._clock()
        self.size_bytes += written
        self.records += records
        if is_synced:
            os.fdatasync(self._fd)

    @property
    def since_s(self) -> float:
        """Monotonic time of the first record; the present time without records."""
        return self._clock() if self.first_append_s is None else self.first_append_s

    def is_in_place(self) -> bool:
        """Returns False if the file is gone, for instance by a clean-up of temporary files."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def seal(self) -> SealedSegment:
        """Closes the file; the segment no longer grows."""
        os.close(self._fd)
        return SealedSegment(self.name, self.path, self.size_bytes, self.since_s, self.records)


@dataclass
class SealedSegment:
    """A segment that no longer grows.

    Attributes:
        since_s: Monotonic time of its first record.
        records: Number of lines; None for an adopted segment, which was not counted yet.
        failures, retry_at_s, is_in_flight: State of its delivery (see delivery.py).
    """

    name: SegmentName
    path: Path
    size_bytes: int
    since_s: float
    records: int | None = None
    failures: int = 0
    retry_at_s: float = 0.0
    is_in_flight: bool = False

    @property
    def is_adopted(self) -> bool:
        return self.records is None


def read_own_file(path: Path) -> bytes:
    """Reads a regular file that belongs to its folder's owner.

    Raises:
        OSError: The path is missing, a FIFO, a link, or another user's.
    """
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not _is_own_file(os.fstat(fd), path.parent.stat().st_uid):
            reason = "not a regular file of the spool's owner"
            raise OSError(errno.EINVAL, reason, str(path))
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def _is_own_file(found: os.stat_result, uid: int) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == uid


def list_segments(folder: Path) -> list[SealedSegment]:
    """Lists the segments in an owner's folder, oldest first, as an adopter sees them.

    The list is empty if the folder is gone (its owner has finished) or not readable.
    """
    found = []
    try:
        uid = folder.stat().st_uid
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    for entry in entries:
        name = parse_segment_name(folder.name, entry.name)
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        is_too_large = status.st_size > MAX_OBJECT_BYTES
        if name is None or is_too_large or not _is_own_file(status, uid):
            continue
        # The file system knows only the time of the last append, which is converted to monotonic
        # time.
        since_s = time.monotonic() - max(0.0, time.time() - status.st_mtime)
        found.append(SealedSegment(name, Path(entry.path), status.st_size, since_s))
    return sorted(found, key=lambda segment: segment.name.sequence)


def remove_oldest(segments: list[SealedSegment]) -> SealedSegment | None:
    """Removes the oldest segment that is not in flight, from the list and the disk.

    Returns:
        The removed segment with its lines counted; None if no segment can be removed.
    """
    waiting = [one for one in segments if not one.is_in_flight]
    if not waiting:
        return None
    oldest = min(waiting, key=lambda segment: segment.since_s)
    try:
        if oldest.records is None:
            with contextlib.suppress(OSError):
                oldest.records = read_own_file(oldest.path).count(b"\n")
        oldest.path.unlink(missing_ok=True)
    except OSError:
        return None
    segments.remove(oldest)
    return oldest
