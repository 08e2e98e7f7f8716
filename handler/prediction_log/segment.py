"""A segment: a file of JSON Lines that becomes one object. Open while it grows, then at rest."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.prediction_log.naming import SegmentName, parse_segment_name

# What a disk says that takes no more.
FULL = (errno.ENOSPC, errno.EDQUOT)


class OpenSegment:
    """The segment that grows. Only `append` runs on the request's path."""

    def __init__(
        self,
        folder: Path,
        name: SegmentName,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates the file.

        Raises:
            OSError: It cannot be created.
        """
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
            OSError: Nothing of `data` was kept.
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
        """Time of the first record, now where there is none."""
        return self._clock() if self.first_append_s is None else self.first_append_s

    def is_in_place(self) -> bool:
        """Whether the file still is where it was made; a cleaner may have removed it."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def seal(self) -> SealedSegment:
        """Ends the growing."""
        os.close(self._fd)
        return SealedSegment(
            self.name, self.path, self.size_bytes, self.since_s, self.records
        )

    def abandon(self) -> None:
        """Closes the descriptor, for a forked child: the segment is its parent's."""
        os.close(self._fd)


@dataclass
class SealedSegment:
    """A segment at rest.

    Attributes:
        size_bytes: Size of the lines.
        since_s: Monotonic time of its first record.
        records: Number of lines; None for an adopted segment, which was not counted yet.
        failures, retry_at_s, is_in_flight: Of its delivery (see delivery.py).
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
    """The bytes of a regular file that belongs to its folder's owner; waits for nothing else.

    Raises:
        OSError: There is none of that name: it may be a FIFO, a link, another user's.
    """
    # Opening a FIFO would wait for somebody who writes into it.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not _is_own_file(os.fstat(fd), path.parent.stat().st_uid):
            why = "no regular file of the spool's owner"
            raise OSError(errno.EINVAL, why, str(path))
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def _is_own_file(found: os.stat_result, uid: int) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == uid


def list_segments(folder: Path) -> list[SealedSegment]:
    """The segments in an owner's folder, oldest first, as an adopter sees them.

    None where the folder is gone (its owner has finished) or closed to us.
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
        if name is None or not _is_own_file(status, uid):
            continue
        # The file system knows only the last append; its age in wall time, as a monotonic time.
        since_s = time.monotonic() - max(0.0, time.time() - status.st_mtime)
        found.append(SealedSegment(name, Path(entry.path), status.st_size, since_s))
    return sorted(found, key=lambda segment: segment.name.sequence)


def remove_oldest(segments: list[SealedSegment]) -> SealedSegment | None:
    """Takes the oldest one that is not on its way off the list and the disk, and counts its lines.

    Returns:
        it; None where there is none, or where none can be removed.
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
