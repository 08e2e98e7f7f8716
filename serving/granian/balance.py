"""Spreads kept connections evenly over the workers of one port.

The kernel gives a new connection to a worker by chance, and the client keeps it: of 32 clients, one
of two workers may have 20; of two clients, both. So a worker that has more requests than another
ends some connections with an answer ("Connection: close"), and those clients connect again.
"""

from __future__ import annotations

import asyncio
import math
import mmap
import time
from collections.abc import Callable, Sequence

TICK_S = 0.25


class Balance:
    """Counts the requests of one worker and compares them with others'; used in the event loop.

    Args:
        means: from `share_numbers`.
        slot: number of this worker's slot.
        peers: numbers of the other slots with the same port.
        clock: weighs the numbers of requests by how long they lasted.

    Attributes:
        requests: requests that wait or are being answered.
        surplus: answers from now on that must end their connection; who sends one counts it down.
    """

    def __init__(
        self,
        means: memoryview[float],
        slot: int,
        peers: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._means, self._slot, self._peers = means, slot, peers
        self._clock = clock
        self.requests = 0
        means[slot] = 0.0  # this worker is READY
        self.surplus = 0
        self._began_s = self._changed_s = clock()
        # The integral of `requests` over the tick.
        self._area = 0.0

    def add(self, requests: int) -> None:
        """Counts requests that arrived, or were answered if the number is negative."""
        now_s = self._clock()
        self._area += self.requests * (now_s - self._changed_s)
        self._changed_s = now_s
        self.requests += requests

    async def run(self) -> None:
        while self._peers:
            self.compare()
            await asyncio.sleep(TICK_S)

    def compare(self) -> None:
        """Decides how many of the next answers end their connection, until the next tick."""
        self.add(0)
        # A mean, because the number jumps whenever a batch is answered.
        mean = self._area / max(TICK_S, self._changed_s - self._began_s)
        self._area, self._began_s = 0.0, self._changed_s
        self._means[self._slot] = mean
        least = min(self._means[peer] for peer in self._peers)
        # Half of the difference would make both equal. Clients pause between requests, so two of
        # them here and none there are a difference of less than 2.
        self.surplus = int(max(0.0, mean - least + 0.5) / 2)


def share_numbers(slots: int) -> memoryview[float]:
    """Makes memory that forked workers share, with one number per slot, infinite at first."""
    numbers = memoryview(mmap.mmap(-1, 8 * slots)).cast("d")
    for slot in range(slots):
        numbers[slot] = math.inf
    return numbers
