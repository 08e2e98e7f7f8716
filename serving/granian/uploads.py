"""Memory for the bodies of the requests that a worker has.

Without the front door, a client that sends a part of a body and then stops would keep its memory.
So an upload has a time limit, and where memory is short the oldest of the slow uploads make room.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from offpath.serving.shell.torchserve_http import BUSY, TOO_SLOW, Refusal, Refused

# Seconds after which an upload is slow: it ends when its memory is needed.
SLOW_S = 1.0
# Seconds after which an upload ends in any case. An image of 30 MB needs 0.25 MB/s.
MOST_S = 120.0


@dataclass(eq=False)
class Body:
    """The memory of one request's body."""

    size: int
    began_s: float
    refusal: Refusal = BUSY


class BodyMemory:
    """Holds memory for bodies; its methods run in the event loop.

    Args:
        most_bytes: for all bodies together. A single body always fits.
        clock: tells the age of uploads.
    """

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._most_bytes, self._bytes = most_bytes, 0
        # Bodies that are being received, the oldest first.
        self._uploads: dict[Body, asyncio.Future[bytes]] = {}

    @contextmanager
    def hold(self, size: int) -> Iterator[Body]:
        """Holds `size` bytes.

        Raises:
            Refused: there is no room.
        """
        self._make_room(size)
        body = Body(size, self._clock())
        self._bytes += size
        try:
            yield body
        finally:
            self._bytes -= body.size

    async def receive(self, body: Body, read: Awaitable[bytes]) -> bytes:
        """Returns what `read` returns.

        Raises:
            Refused: the upload took too long, or others needed its memory.
        """
        self._uploads[body] = asyncio.ensure_future(read)
        # Granian's future is none that the garbage collector knows. The traceback of its exception
        # leads to this frame, so a variable that holds it would keep all of them for ever.
        del read
        try:
            return await self._uploads[body]
        except asyncio.CancelledError:
            raise Refused(body.refusal) from None
        finally:
            self._uploads.pop(body, None)

    def end_late_uploads(self) -> None:
        """Ends the uploads that have reached the time limit."""
        self._end_uploads(MOST_S, TOO_SLOW)

    def _make_room(self, size: int) -> None:
        if self._lacks(size):
            self._end_uploads(SLOW_S, BUSY, size)
        if self._bytes and self._lacks(size):
            raise Refused(BUSY)

    def _lacks(self, size: int) -> bool:
        return self._bytes + size > self._most_bytes

    def _end_uploads(self, age_s: float, refusal: Refusal, size: int | None = None) -> None:
        """Ends uploads of at least this age, until `size` bytes fit."""
        latest_s = self._clock() - age_s
        for body in list(self._uploads):
            if body.began_s > latest_s or (size is not None and not self._lacks(size)):
                return
            self._uploads.pop(body).cancel()
            self._bytes -= body.size
            body.size, body.refusal = 0, refusal
