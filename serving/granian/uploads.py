"""Memory for the bodies of the requests that a worker has.

Without the front door, a client that sends a part of a body and then stops would keep its memory.
So an upload has a time limit, and where memory is short, slow uploads and those that are much
larger than the new body make room, the oldest first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from offpath.handler.error_kinds import BUSY, TOO_SLOW, ErrorKind
from offpath.serving.service.messages import Refused

# Seconds after which an upload is slow: it ends when its memory is needed.
SLOW_S = 1.0
# An upload with so many times the bytes of another body ends when that needs its memory, however
# young it is: a flood can fill the memory before any upload is slow.
MUCH_LARGER = 16
# Seconds after which an upload ends if nothing of it has arrived.
FIRST_S = 10.0
# Seconds after which an upload ends in any case. An image of 30 MB needs 0.25 MB/s.
MAX_S = 120.0


@dataclass(eq=False)
class Body:
    began_s: float
    size: int = 0
    refusal: ErrorKind = BUSY


class BodyMemory:
    """Holds memory for bodies, `max_bytes` for all together; a single body always fits.

    Its methods run in the event loop.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._max_bytes, self._bytes = max_bytes, 0
        # Bodies that are being received, the oldest first, with the task that receives each.
        self._uploads: dict[Body, Any] = {}

    @contextmanager
    def hold(self, size: int) -> Iterator[Body]:
        """Holds `size` bytes, to which `grow` can add; raises Refused if there is no room."""
        body = Body(self._clock())
        self.grow(body, size)
        try:
            yield body
        finally:
            self._bytes -= body.size

    def grow(self, body: Body, size: int) -> None:
        """Holds `size` more bytes; raises Refused if there is no room."""
        if self._lacks(body, size):
            self._make_room(body, size)
        body.size += size
        self._bytes += size

    @contextmanager
    def receive(self, body: Body) -> Iterator[None]:
        """Ends what runs inside, by Refused, when it takes too long or others need its memory."""
        self._uploads[body] = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            raise Refused(body.refusal) from None
        finally:
            self._uploads.pop(body, None)

    def end_late_uploads(self) -> None:
        for body in list(self._uploads):
            if self._clock() - body.began_s >= (MAX_S if body.size else FIRST_S):
                self._end(body, TOO_SLOW)

    def _lacks(self, body: Body, size: int) -> bool:
        return self._bytes > body.size and self._bytes + size > self._max_bytes

    def _make_room(self, body: Body, size: int) -> None:
        """Ends slow or much larger uploads, the oldest first, until `size` more bytes fit."""
        latest_s, large = self._clock() - SLOW_S, MUCH_LARGER * (body.size + size)
        for other in list(self._uploads):
            # An upload that is slower than the others does not end them.
            if other is body or not self._lacks(body, size):
                break
            if other.size and (other.began_s <= latest_s or other.size >= large):
                self._end(other, BUSY)
        if self._lacks(body, size):
            raise Refused(BUSY)

    def _end(self, body: Body, refusal: ErrorKind) -> None:
        self._uploads.pop(body).cancel()
        self._bytes -= body.size
        body.size, body.refusal = 0, refusal
