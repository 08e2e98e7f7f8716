"""The shipper: a thread with its own event loop that seals, compresses, uploads and deletes.

Nothing in this module runs on the request's path, and no failure ends the thread. A segment is
deleted only after the sink has acknowledged it, or by the configured policy of a full spool.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable

from offpath.handler.announcer import Announcer
from offpath.handler.prediction_log import sink_file
from offpath.handler.prediction_log.delivery import Delivery
from offpath.handler.prediction_log.delivery_failures import describe_error
from offpath.handler.prediction_log.segment import SealedSegment
from offpath.handler.prediction_log.sinks import open_sink
from offpath.handler.prediction_log.spool import Spool, SpoolFull

TICK_S = 0.2
RESCAN_S = 1.0
ADOPT_S = 5.0
UPLOADS_AT_ONCE = 2


class Shipper(threading.Thread):
    """Ships the segments of a spool until `stop`.

    Attributes:
        retries: Number of deliveries that failed and are tried again.
        last_success_unix_s: Time of the last acknowledgement, 0 before the first.
    """

    def __init__(self, spool: Spool, announcer: Announcer, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.shipped = 0
        self.retries = 0
        self.last_success_unix_s = 0.0
        self._spool = spool
        self._settings = spool.settings
        self._announcer = announcer
        self._failing: set[str] = set()
        self._next_rescan_s = 0.0
        self._next_adopt_s = 0.0
        self._stop_at_s: float | None = None

    def stop(self, timeout_s: float) -> None:
        """Ships as much as possible within `timeout_s`, then ends; the rest stays in the spool."""
        self._stop_at_s = time.monotonic() + timeout_s
        self.join(timeout_s + 1.0)

    def run(self) -> None:
        while self._stop_at_s is None:
            try:
                asyncio.run(self._work())
            except OSError as error:
                # No file descriptor was free for the event loop.
                self._announce(error)
                time.sleep(TICK_S)

    async def _work(self) -> None:
        sink = open_sink(self._settings)
        delivery = Delivery(
            sink,
            UPLOADS_AT_ONCE,
            self._settings.retry_max_s,
            self._delivered,
            self._failed,
        )
        preparing = asyncio.create_task(self._guard(sink.prepare))
        while self._stop_at_s is None:
            await self._tick(delivery)
            await asyncio.sleep(TICK_S)
        await preparing
        await self._guard(self._drain, delivery)
        await self._guard(delivery.close)
        self._spool.release()

    async def _guard(self, step: Callable[..., Awaitable[None] | None], *arguments: object) -> None:
        """Runs a step. A failure is logged; the step is tried again at the next tick."""
        try:
            work = step(*arguments)
            if work is not None:
                await work
        except Exception as error:
            self._announce(error)

    def _announce(self, error: Exception) -> None:
        kind, message = describe_error(error, self._settings.uri)
        self._announcer.announce(f"shipper {kind}", f"the shipper: {message}")

    async def _tick(self, delivery: Delivery) -> None:
        now_s = time.monotonic()
        await self._guard(self._spool.rotate_if_due)
        if now_s >= self._next_adopt_s:
            self._next_adopt_s = now_s + ADOPT_S
            await self._guard(self._spool.adopt)
        if now_s >= self._next_rescan_s:
            self._next_rescan_s = now_s + RESCAN_S
            await self._guard(self._spool.rescan)
        await self._guard(self._spool.offer, delivery.start)
        self._report_problem()

    def _delivered(self, segment: SealedSegment, records: int) -> None:
        self._spool.delete(segment, dropped=0)
        self.shipped += records
        self.last_success_unix_s = time.time()
        if self._failing and not any(one.failures for one in self._spool.sealed):
            kinds, self._failing = tuple(self._failing), set()
            self._announcer.recover(kinds, f"{self._settings.uri} takes records again")
            sink_file.clear_last_error(self._spool.sink_folder)

    def _failed(self, segment: SealedSegment, error: Exception) -> None:
        if isinstance(error, FileNotFoundError) and not segment.path.exists():
            # Another process or a person has removed the file.
            self._spool.delete(segment, dropped=segment.records or 0)
        else:
            self.retries += 1
        self._report_failure(error)

    def _report_failure(self, error: Exception) -> None:
        kind, message = describe_error(error, self._settings.uri)
        self._failing.add(kind)
        text = f"cannot deliver to {self._settings.uri}: {message}; "
        if self._announcer.announce(kind, text + "the records wait in the spool"):
            # On a read-only or full disk the message is only in the log.
            with contextlib.suppress(OSError):
                sink_file.write_last_error(self._spool.sink_folder, kind, message)

    def _report_problem(self) -> None:
        """Logs why the request's path drops records or holds replies back."""
        problem, self._spool.problem = self._spool.problem, None
        if problem is None:
            return
        folder = self._settings.spool_dir
        if isinstance(problem, SpoolFull):
            what = (
                f"the spool {folder} is full ({self._settings.spool_max_bytes} bytes): see that "
                "records are delivered, or raise prediction_log.spool_max_bytes"
            )
        else:
            what = (
                f"cannot write the spool {folder} ({problem}): make room there, or set "
                "prediction_log.spool_dir or OFFPATH_SPOOL_DIR to a writable folder"
            )
        blocked = "replies wait" if self._settings.when_full == "block" else "replies go on"
        dropped = self._spool.dropped
        self._announcer.announce(
            type(problem).__name__,
            f"{what}; {blocked}, {dropped} records dropped so far",
        )

    async def _drain(self, delivery: Delivery) -> None:
        self._spool.seal()
        while self._spool.sealed and time.monotonic() < (self._stop_at_s or 0.0):
            self._spool.offer(delivery.start)
            if not delivery.in_flight:
                # Failed segments are not waited for; another process adopts them later.
                return
            await asyncio.wait(
                delivery.in_flight,
                timeout=TICK_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
