"""Open loop: when requests are due. Runs in Locust's process, on gevent."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import gevent  # type: ignore[import-untyped]
from gevent.queue import Queue  # type: ignore[import-untyped]

# Unanswered so long after the window's end: counted as no reply.
DRAIN_S = 30.0


@dataclass(frozen=True)
class Arrival:
    """A request: when it is due (`time.perf_counter`), and whether that is inside the window."""

    due_s: float
    is_counted: bool


class Arrivals:
    """Poisson arrivals at a mean rate; clients take them from `queue` in order."""

    def __init__(self, rate: float, seed: int) -> None:
        self.queue: Queue = Queue()
        self.counted = 0
        self.is_over = False
        self._pauses_s = make_pauses_s(rate, seed)
        self._opens_s = float("inf")
        self._closes_s = float("inf")
        self._limit: int | None = None

    def open(self, seconds: float | None, limit: int | None) -> None:
        """The window begins now; it ends after `seconds` or `limit` arrivals."""
        self._opens_s = time.perf_counter()
        self._closes_s = self._opens_s + (float("inf") if seconds is None else seconds)
        self._limit = limit

    def run(self) -> None:
        """Puts each arrival into the queue when it is due, until the window is over."""
        due_s = time.perf_counter()
        while not self.is_over:
            due_s += next(self._pauses_s)
            # Also when late: others must run.
            gevent.sleep(max(0.0, due_s - time.perf_counter()))
            if due_s >= self._closes_s:
                break
            is_counted = due_s >= self._opens_s
            self.queue.put(Arrival(due_s, is_counted))
            self.counted += is_counted
            if self.counted == self._limit:
                break
        self.is_over = True


def make_pauses_s(rate: float, seed: int) -> Iterator[float]:
    """Seconds between arrivals: exponentially distributed, the same for the same seed."""
    source = random.Random(seed)
    while True:
        yield source.expovariate(rate)
