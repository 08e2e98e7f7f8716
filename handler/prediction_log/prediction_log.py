"""Opens the log of one worker, hands its records to the kernel, and counts them.

`append` hands a batch's records to the kernel in one write(2). The shipper's thread does the rest.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from offpath.handler.announcer import Announcer
from offpath.handler.prediction_log import sink_file
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.recent_ids import RecentIds
from offpath.handler.prediction_log.record import Record, encode_records
from offpath.handler.prediction_log.shipper import Shipper
from offpath.handler.prediction_log.spool import Spool

LOGGER = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class LogCounters:
    """Counts since this process opened the log, and the present state of the spool.

    Attributes:
        appended: Records handed to the kernel.
        shipped: Records acknowledged by the sink, including adopted ones.
        dropped: Records given up because the spool was full or not writable, or encoding failed.
        retries: Deliveries that failed and are tried again.
        spool_bytes: Bytes waiting for this sink, all workers together.
        oldest_unshipped_age_s: Age of the oldest record that this process still has to ship.
        last_success_unix_s: Time of the last acknowledged delivery, 0 before the first.
    """

    appended: int = 0
    shipped: int = 0
    dropped: int = 0
    retries: int = 0
    spool_bytes: int = 0
    oldest_unshipped_age_s: float = 0.0
    last_success_unix_s: float = 0.0


class PredictionLog:
    """The log of one worker: it spools and ships."""

    def __init__(self, settings: PredictionLogSettings, subject: str) -> None:
        self._settings = settings
        self._announcer = Announcer(LOGGER, subject)
        self._spool = Spool(settings)
        self._shipper = Shipper(self._spool, self._announcer, subject)
        self._recent: RecentIds | None = None
        self._has_logged_bug = False

    def start(self) -> None:
        """Stores where the segments go, and starts the shipper."""
        try:
            sink_file.write_sink_file(self._spool.sink_folder, self._settings)
            self._recent = RecentIds(self._spool.sink_folder)
        except OSError as error:
            # Without the table of ids, a request that TorchServe runs twice is recorded twice.
            self._spool.problem = error
        self._shipper.start()

    @property
    def problem(self) -> str:
        """The reason why no record can be written at present; empty if records can be."""
        return str(self._spool.open_error or "")

    def append(self, records: Sequence[Record]) -> None:
        """Hands the records of a batch to the kernel; never raises.

        Under `when_full: block` this waits while the spool is full or cannot be written.
        """
        try:
            chosen = self._leave_out_recorded(self._sample(records))
            if chosen:
                data = encode_records(chosen, self._settings.fields)
                if self._spool.append(data, len(chosen)):
                    self._note_recorded(chosen)
        except Exception:
            # A record must never fail its request. This is a bug, logged once with its traceback.
            self._spool.forget(0, dropped=len(records))
            if not self._has_logged_bug:
                self._has_logged_bug = True
                LOGGER.exception("prediction log: records dropped by a bug")

    def _sample(self, records: Sequence[Record]) -> Sequence[Record]:
        share = self._settings.sample_rate
        if share >= 1.0:
            return records
        limit = share * 2**32
        # Chosen by a hash of the event id, so that every process chooses the same events.
        return [record for record in records if zlib.crc32(record.event_id.encode()) < limit]

    def _leave_out_recorded(self, records: Sequence[Record]) -> Sequence[Record]:
        recent = self._recent
        if recent is None:
            return records
        return [record for record in records if not recent.has(_name(record))]

    def _note_recorded(self, records: Sequence[Record]) -> None:
        if self._recent is not None:
            for record in records:
                self._recent.add(_name(record))

    def counters(self) -> LogCounters:
        """Returns the counts so far, without I/O."""
        return LogCounters(
            appended=self._spool.appended,
            shipped=self._shipper.shipped,
            dropped=self._spool.dropped,
            retries=self._shipper.retries,
            spool_bytes=self._spool.spool_bytes,
            oldest_unshipped_age_s=self._spool.oldest_age_s,
            last_success_unix_s=self._shipper.last_success_unix_s,
        )

    def close(self) -> None:
        """Ships as much as possible in a few seconds.

        Without this call nothing is lost: the next process, or `offpath logs ship`, adopts the
        remaining segments.
        """
        self._shipper.stop(CLOSE_TIMEOUT_S)


def _name(record: Record) -> str:
    """Returns the text that is the same if a request runs twice; its copy to a shadow differs."""
    return record.event_id and f"{record.event_id} {record.model} {record.version}"


def open_prediction_log(
    settings: PredictionLogSettings, *, model: str, version: str
) -> PredictionLog:
    """Opens the log and starts its shipper, which also adopts segments of dead processes.

    Raises:
        OSError: The spool cannot be written, and `when_full: block` forbids to go on without it.
    """
    log = PredictionLog(settings, f"prediction log of {model} {version}")
    log.start()
    return log
