"""The spool of one process: `append` runs on the request's path, everything else in the shipper.

Both sides share one lock. The request's path holds it for a write(2), the shipper for a swap of two
references. Opening, sealing, scanning and deleting happen outside the lock.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable

from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.owner import (
    AdoptedFolders,
    OwnerFolder,
    count_bytes,
    create_owner_folder,
)
from offpath.handler.prediction_log.segment import (
    FULL,
    OpenSegment,
    SealedSegment,
    SegmentName,
    format_hour,
    remove_oldest,
)
from offpath.handler.prediction_log.sink_file import (
    SINK_FILE,
    make_sink_folder_name,
    write_sink_file,
)

BLOCKED_POLL_S = 0.05
# With this many sealed segments of its own, a process seals no further segment only because of its
# age: a day's outage must not leave thousands of segments.
MAX_SEALED_BY_AGE = 4


class SpoolFull(Exception):
    """The spool has reached its bound."""


class Spool:
    """Segments waiting for one sink.

    Attributes:
        sink_folder: Folder of this sink in the spool, shared with other processes.
        sealed: Sealed segments that this process has to ship, its own first, each group oldest
            first.
        problem: Why records were dropped or held back; the shipper reports and clears it.
        open_error: Why the last segment could not be opened; None if it could.
        lacks_room: The disk is full and there was no sealed segment to give up.
        appended, dropped: Numbers of records.

    Raises:
        OSError: The first segment cannot be opened, and the policy `block` forbids to go on
            without a spool.
    """

    def __init__(
        self,
        settings: PredictionLogSettings,
        hour: Callable[[], str] = format_hour,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.sink_folder = settings.spool_dir / make_sink_folder_name(settings.uri)
        self.sealed: list[SealedSegment] = []
        self.problem: Exception | None = None
        self.open_error: OSError | None = None
        self.lacks_room = False
        self.appended = 0
        self.dropped = 0
        self._hour = hour
        self._clock = clock
        self._is_synced = settings.sync == "fsync"
        self._is_blocking = settings.when_full == "block"
        self._changed = threading.Condition()
        self._current: OpenSegment | None = None
        self._own: OwnerFolder | None = None
        self._adopted = AdoptedFolders(self.sink_folder)
        self._sequence = 0
        self._own_bytes = 0
        self._other_bytes = 0
        self._is_closed = False
        try:
            self._current = self._open_segment()
        except OSError as error:
            if self._is_blocking:
                raise
            self.problem = self.open_error = error

    # The request's path.

    def append(self, data: bytes, records: int) -> bool:
        """Hands the lines of a batch to the kernel, or counts them as dropped.

        Under `block` this returns only when the lines are written or the log is closed. Under
        `drop_oldest` the oldest sealed segments are given up until these lines have room.

        Returns:
            True if the lines were written.
        """
        with self._changed:
            while True:
                if not self._is_blocking and self.is_tight and self._give_up_oldest():
                    self.problem = SpoolFull("the oldest records were given up")
                    continue
                try:
                    self._write(data, records)
                    return True
                except (OSError, SpoolFull) as error:
                    # Stored without its traceback, which would keep the batch's data alive.
                    self.problem = error.with_traceback(None)
                if self._is_blocking and not self._is_closed:
                    self._changed.wait(BLOCKED_POLL_S)
                    continue
                self.lacks_room = getattr(self.problem, "errno", None) in FULL
                if not (self.lacks_room and self._give_up_oldest()):
                    self.dropped += records
                    return False

    def _write(self, data: bytes, records: int) -> None:
        segment = self._current
        if segment is None:
            raise self.open_error or OSError(errno.EBADF, "there is no segment to write to")
        if self.spool_bytes + len(data) > self.settings.spool_max_bytes:
            raise SpoolFull(f"the spool holds {self.spool_bytes} bytes")
        segment.append(data, records, self._is_synced)
        self._own_bytes += len(data)
        self.appended += records

    def _give_up_oldest(self) -> bool:
        oldest = remove_oldest(self.sealed)
        if oldest is not None:
            self.forget(oldest.size_bytes, oldest.records or 0)
        return oldest is not None

    @property
    def spool_bytes(self) -> int:
        """Bytes waiting for this sink; the part of other processes is as of the last scan."""
        return self._own_bytes + self._other_bytes

    @property
    def oldest_age_s(self) -> float:
        """Age of the oldest record that this process has to ship; 0 without records."""
        times_s = [segment.since_s for segment in list(self.sealed)]
        current = self._current
        # An empty segment would give some microseconds, which change with each reading: an idle
        # worker would then write over the metric of a worker that is behind.
        if current is not None and current.records:
            times_s.append(current.since_s)
        now_s = self._clock()
        return now_s - min(times_s, default=now_s)

    # The shipper's side.

    def rotate_if_due(self) -> None:
        """Seals the open segment when it is big or old enough, or the hour has changed."""
        segment = self._current
        if self._is_closed:
            return
        if segment is None:
            self._replace(None)
        elif not segment.is_in_place():
            self._restart(segment)
        elif segment.records == 0:
            if segment.name.hour != self._hour():
                self._replace(segment)
        elif self._is_due(segment):
            self._replace(segment)

    def _is_due(self, segment: OpenSegment) -> bool:
        settings = self.settings
        own = sum(not sealed.is_adopted for sealed in self.sealed)
        age_s = self._clock() - segment.since_s
        return (
            segment.size_bytes >= settings.segment_max_bytes
            or (age_s >= settings.segment_max_age_s and own < MAX_SEALED_BY_AGE)
            or segment.name.hour != self._hour()
            or ((self.is_tight or self.lacks_room) and not self.sealed)
        )

    @property
    def is_tight(self) -> bool:
        """True if room must be made: from one segment below the bound, so that the bound holds."""
        bound = self.settings.spool_max_bytes - self.settings.segment_max_bytes
        return self.spool_bytes > bound

    def seal(self) -> None:
        """Seals the open segment without a successor: nothing is appended afterwards."""
        with self._changed:
            self._is_closed = True
            old, self._current = self._current, None
            self._changed.notify_all()
        self._seal(old)

    def _replace(self, old: OpenSegment | None) -> None:
        try:
            new = self._open_segment()
        except OSError as error:
            # The old segment keeps growing; without an old segment, records are counted as dropped.
            self.problem = self.open_error = error
            return
        with self._changed:
            self._current, self.open_error = new, None
            self.lacks_room = False
            self._changed.notify_all()
        # Records appended to `old` in the meantime are sealed with it.
        self._seal(old)

    def _seal(self, old: OpenSegment | None) -> None:
        if old is None:
            return
        sealed = old.seal()
        if sealed.size_bytes == 0:
            sealed.path.unlink(missing_ok=True)
            return
        with self._changed:
            own = [segment for segment in self.sealed if not segment.is_adopted]
            self.sealed.insert(len(own), sealed)

    def _open_segment(self) -> OpenSegment:
        if self._own is None:
            self.sink_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._own = create_owner_folder(self.sink_folder)
        self._sequence += 1
        name = SegmentName(self._own.name, self._hour(), self._sequence)
        segment = OpenSegment(self._own.path, name, self._clock)
        if self._is_synced:
            # The folder is synced too: otherwise a power cut loses the file with its records.
            os.fsync(self._own.lock_fd)
        return segment

    def _restart(self, lost: OpenSegment) -> None:
        """Starts over in a new folder after the spool was removed while in use."""
        own, self._own = self._own, None
        with self._changed:
            self._current = None
        lost.seal()
        self.forget(lost.size_bytes, dropped=lost.records)
        if own is not None:
            own.release()
        self._replace(None)
        self.problem = FileNotFoundError(f"{lost.path} was removed while in use")

    def adopt(self) -> None:
        """Takes over the segments of dead processes."""
        found = self._adopted.adopt()
        with self._changed:
            self.sealed.extend(found)
            self._own_bytes += sum(segment.size_bytes for segment in found)

    def rescan(self) -> None:
        """Counts the bytes of other processes, and restores a missing sink file."""
        if self._current is not None and not (self.sink_folder / SINK_FILE).exists():
            write_sink_file(self.sink_folder, self.settings)
        mine = self._adopted.paths
        if self._own is not None:
            mine.add(self._own.path)
        others = count_bytes(self.sink_folder, apart_from=mine)
        with self._changed:
            self._other_bytes = others
            self._changed.notify_all()

    def offer(self, take: Callable[[list[SealedSegment]], None]) -> None:
        """Calls `take` with the sealed segments; none is given up during the call."""
        with self._changed:
            take(self.sealed)
        self._adopted.release_emptied({one.path.parent for one in self.sealed})

    def delete(self, segment: SealedSegment, dropped: int) -> None:
        """Deletes a segment that was delivered (`dropped` is 0) or removed by another process."""
        segment.path.unlink(missing_ok=True)
        with self._changed:
            self.sealed.remove(segment)
            self.forget(segment.size_bytes, dropped)

    def forget(self, size_bytes: int, dropped: int) -> None:
        """Updates the counts for data that has left the spool or never reached it."""
        with self._changed:
            self._own_bytes -= size_bytes
            self.dropped += dropped
            self._changed.notify_all()

    def release(self) -> None:
        """Gives up the locks, so that others may adopt the remaining segments."""
        self._adopted.release()
        if self._own is not None:
            self._own.release()
            self._own = None
