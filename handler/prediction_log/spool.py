"""The spool of one process: `append` for the request's path, everything else for the shipper.

The two meet in one lock, which is held for a write(2) on one side and a swap of two references on
the other. Opening, sealing, scanning and deleting happen outside it.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable

from offpath.handler.prediction_log.naming import (
    SegmentName,
    format_hour,
    make_sink_folder_name,
)
from offpath.handler.prediction_log.owner import (
    AdoptedFolders,
    OwnerFolder,
    count_bytes,
    create_owner_folder,
)
from offpath.handler.prediction_log.segment import OpenSegment, SealedSegment
from offpath.handler.prediction_log.settings import PredictionLogSettings

BLOCKED_POLL_S = 0.05
# While none of them is taken, age alone seals no more: an outage of a day must not leave thousands
# of small segments.
MOST_SEALED_BY_AGE = 4


class SpoolFull(Exception):
    """The spool holds as much as it may."""


class Spool:
    """Segments waiting for one sink.

    Attributes:
        sink_folder: Folder of this sink in the spool, shared with other processes.
        sealed: Segments at rest that this process has to ship, its own first, each group oldest
            first.
        problem: Why records were dropped or held back; the shipper reports and clears it.
        appended, dropped: Records.
    """

    def __init__(
        self,
        settings: PredictionLogSettings,
        hour: Callable[[], str] = format_hour,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens the first segment where that is possible.

        Raises:
            OSError: It is not, and the policy `block` forbids to go on without a spool.
        """
        self.settings = settings
        self.sink_folder = settings.spool_dir / make_sink_folder_name(settings.uri)
        self.sealed: list[SealedSegment] = []
        self.problem: Exception | None = None
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
            self.problem = error

    # The request's path.

    def append(self, data: bytes, records: int) -> bool:
        """Hands the lines of a batch to the kernel, or counts them as dropped; whether it did.

        Under `block` it returns only when the lines are handed over or the log is closed.
        """
        with self._changed:
            while True:
                try:
                    self._write(data, records)
                    return True
                except (OSError, SpoolFull) as error:
                    # Without its traceback, which would keep the batch's data alive.
                    self.problem = error.with_traceback(None)
                if not self._is_blocking or self._is_closed:
                    self.dropped += records
                    return False
                self._changed.wait(BLOCKED_POLL_S)

    def _write(self, data: bytes, records: int) -> None:
        segment = self._current
        if segment is None:
            why = "closed" if self._is_closed else "without a spool that it can write"
            raise OSError(errno.EBADF, f"the prediction log is {why}")
        if self.spool_bytes + len(data) > self.settings.spool_max_bytes:
            raise SpoolFull(f"the spool holds {self.spool_bytes} bytes")
        segment.append(data, records, self._is_synced)
        self._own_bytes += len(data)
        self.appended += records

    @property
    def spool_bytes(self) -> int:
        """Bytes waiting for this sink: exact for this process, as of the last scan for others."""
        return self._own_bytes + self._other_bytes

    @property
    def is_open(self) -> bool:
        """Whether there is a segment to append to."""
        return self._current is not None

    @property
    def oldest_since_s(self) -> float | None:
        """Monotonic time of the oldest record that this process has to ship."""
        times = [segment.since_s for segment in list(self.sealed)]
        current = self._current
        if current is not None and current.first_append_s is not None:
            times.append(current.first_append_s)
        return min(times, default=None)

    def count_dropped(self, records: int) -> None:
        """Counts records that did not reach the spool at all."""
        with self._changed:
            self.dropped += records

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
        now_s = self._clock()
        since_s = now_s if segment.first_append_s is None else segment.first_append_s
        own = sum(not sealed.is_adopted for sealed in self.sealed)
        is_old = now_s - since_s >= settings.segment_max_age_s
        return (
            segment.size_bytes >= settings.segment_max_bytes
            or (is_old and own < MOST_SEALED_BY_AGE)
            or segment.name.hour != self._hour()
            or (self.is_tight and not self.sealed)
        )

    @property
    def is_tight(self) -> bool:
        """Whether room has to be made: a segment's worth before the bound, so that it holds."""
        settings = self.settings
        return self.spool_bytes > settings.spool_max_bytes - settings.segment_max_bytes

    def seal(self) -> None:
        """Ends the open segment without a successor: nothing is appended from here on."""
        with self._changed:
            self._is_closed = True
            old, self._current = self._current, None
            self._changed.notify_all()
        self._put_at_rest(old)

    def _replace(self, old: OpenSegment | None) -> None:
        try:
            new = self._open_segment()
        except OSError as error:
            # An old segment goes on growing; without one, appends are counted as dropped.
            self.problem = error
            return
        with self._changed:
            self._current = new
            self._changed.notify_all()
        # What was appended since `old` was looked at is sealed with it.
        self._put_at_rest(old)

    def _put_at_rest(self, old: OpenSegment | None) -> None:
        if old is None:
            return
        sealed = old.seal()
        if sealed.size_bytes == 0:
            sealed.path.unlink(missing_ok=True)
            return
        own = [segment for segment in self.sealed if not segment.is_adopted]
        self.sealed.insert(len(own), sealed)

    def _open_segment(self) -> OpenSegment:
        if self._own is None:
            self.sink_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._own = create_owner_folder(self.sink_folder)
        self._sequence += 1
        name = SegmentName(
            self._own.name, self._hour(), self._sequence, self.settings.compression
        )
        segment = OpenSegment(self._own.path, name, self._clock)
        if self._is_synced:
            # The folder's entry too, or a power cut loses the file with its records.
            os.fsync(self._own.lock_fd)
        return segment

    def _restart(self, lost: OpenSegment) -> None:
        """Somebody removed the spool while it was in use: start over in a new folder."""
        own, self._own = self._own, None
        with self._changed:
            self._current = None
        sealed = lost.seal()
        self._forget(sealed.size_bytes, dropped=sealed.records or 0)
        if own is not None:
            own.release()
        self._replace(None)
        self.problem = FileNotFoundError(
            errno.ENOENT, "the spool was removed while in use", str(lost.path)
        )

    def adopt(self) -> None:
        """Takes over the segments of dead processes."""
        found = self._adopted.adopt()
        self.sealed.extend(found)
        with self._changed:
            self._own_bytes += sum(segment.size_bytes for segment in found)

    def rescan(self) -> None:
        """Counts what other processes have in the spool."""
        mine = self._adopted.paths
        if self._own is not None:
            mine.add(self._own.path)
        others = count_bytes(self.sink_folder, apart_from=mine)
        with self._changed:
            self._other_bytes = others
            self._changed.notify_all()

    def delete(self, segment: SealedSegment, dropped: int) -> None:
        """Forgets a segment that was delivered (`dropped` 0) or is given up."""
        segment.path.unlink(missing_ok=True)
        self.sealed.remove(segment)
        self._forget(segment.size_bytes, dropped)
        self._adopted.release_emptied({one.path.parent for one in self.sealed})

    def _forget(self, size_bytes: int, dropped: int) -> None:
        with self._changed:
            self._own_bytes -= size_bytes
            self.dropped += dropped
            self._changed.notify_all()

    def release(self) -> None:
        """Gives up the locks: from here on others may adopt what is left."""
        self._adopted.release()
        if self._own is not None:
            self._own.release()
            self._own = None

    def abandon(self) -> None:
        """In a forked child: closes the descriptors, for the locks belong to the parent.

        A child that kept them would keep a dead parent's segments from being adopted.
        """
        self._changed = threading.Condition()
        self._is_closed = True
        if self._current is not None:
            self._current.abandon()
            self._current = None
        if self._own is not None:
            os.close(self._own.lock_fd)
            self._own = None
        self._adopted.abandon()
