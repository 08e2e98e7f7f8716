"""Delivers segments to a sink, a few at a time, for the worker's shipper and `offpath logs ship`.

A segment that cannot be read, or that the sink refuses, waits for its own back-off while others go
ahead. While the sink itself fails, only one segment at a time is tried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from offpath.handler.prediction_log.delivery_failures import pause_s
from offpath.handler.prediction_log.packing import pack_segment
from offpath.handler.prediction_log.segment import SealedSegment
from offpath.handler.prediction_log.sinks import Sink


class Delivery:
    """The deliveries to one sink.

    Args:
        delivered: Called with a segment and its records, once the sink has proved to hold them.
        failed: Called with a segment and the reason why it was not delivered.

    Attributes:
        in_flight: Deliveries under way.
        failures: Failures of the sink in a row.
    """

    def __init__(
        self,
        sink: Sink,
        at_once: int,
        retry_max_s: float,
        delivered: Callable[[SealedSegment, int], None],
        failed: Callable[[SealedSegment, Exception], None],
    ) -> None:
        self.in_flight: set[asyncio.Task[None]] = set()
        self.failures = 0
        self._sink = sink
        self._at_once = at_once
        self._retry_max_s = retry_max_s
        self._delivered = delivered
        self._failed = failed
        self._retry_at_s = 0.0

    def start(self, segments: Iterable[SealedSegment]) -> None:
        """Starts the deliveries that are due; segments with the fewest failures come first."""
        now_s = time.monotonic()
        if now_s < self._retry_at_s:
            return
        room = (1 if self.failures else self._at_once) - len(self.in_flight)
        ready = [one for one in segments if not one.is_in_flight and one.retry_at_s <= now_s]
        ready.sort(key=lambda segment: segment.failures)
        for segment in ready[: max(0, room)]:
            segment.is_in_flight = True
            self.in_flight.add(asyncio.create_task(self._deliver(segment)))

    async def _deliver(self, segment: SealedSegment) -> None:
        is_at_sink = False
        try:
            body, records = await asyncio.to_thread(pack_segment, segment)
            if body:
                is_at_sink = True
                await self._sink.put(segment.name.key, body)
                is_at_sink = False
                self.failures = 0
                self._retry_at_s = 0.0
            self._delivered(segment, records)
        except Exception as error:
            self._put_off(segment, is_at_sink)
            self._failed(segment, error)
        finally:
            segment.is_in_flight = False
            self.in_flight.difference_update({asyncio.current_task()})

    def _put_off(self, segment: SealedSegment, is_at_sink: bool) -> None:
        now_s = time.monotonic()
        segment.failures += 1
        segment.retry_at_s = now_s + pause_s(segment.failures, self._retry_max_s)
        if is_at_sink:
            self.failures += 1
            self._retry_at_s = now_s + pause_s(self.failures, self._retry_max_s)

    async def close(self) -> None:
        """Cancels the deliveries under way and closes the sink."""
        tasks = list(self.in_flight)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sink.close()
