"""The queue of a model's requests, which become batches."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

Waiting = tuple[Any, "asyncio.Future[Any]"]
# Of a reply that `handle` leaves out: the request is handled again, as a batch of its own.
ALONE = None
# Two of the large photographs: docs/research/2026-11-28-full-servers.md.
BATCH_READ_S = 0.025
# While lone requests wait, groups have one of so many places of a batch.
OF_GROUPS = 4


class BatchQueue:
    """A queue of requests, and its threads, which answer them in batches, in the way of TorchServe.

    Whatever waits when a thread is free becomes a batch. The first request of a batch waits for
    others only where others were there a moment ago, so a lone request never waits. `serve.batch`
    instead closes a batch by its clock while the previous one still runs, so that batches are small
    under load: docs/research/2026-11-22-ray-serve.md has the figures.

    Requests that came together wait as one group. A batch takes one request of each group in turn,
    so a group of a hundred delays the others no more than a lone request does; and all groups have
    a quarter of its places while lone requests wait.

    Args:
        handle: takes the requests of a batch and returns as many replies; runs in a thread. A
            reply may be ALONE if the batch has several requests.
        threads: batches that `handle` may have at once; each has a thread.
        most: the most requests in a batch.
        delay_s: how long the first request of a batch waits at most for as many others as were in
            flight when the last batch ended.
        predict_s: predicts the seconds that reading a request takes. A batch closes when those of
            its requests exceed BATCH_READ_S: the first of eight large photographs would otherwise
            wait until the others are decoded too.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[Any]], Sequence[Any]],
        most: int,
        delay_s: float,
        clock: Callable[[], float] = time.monotonic,
        predict_s: Callable[[Any], float] = lambda request: 0.0,
        threads: int = 1,
    ) -> None:
        self._handle, self._most, self._delay_s = handle, most, delay_s
        self._most_of_groups = max(1, most // OF_GROUPS)
        self._clock, self._predict_s = clock, predict_s
        # Thread -> when it began its batch.
        self._since_s: dict[int, float] = {}
        self._expected = 1
        self._waiting: queue.SimpleQueue[list[Waiting] | None] = queue.SimpleQueue()
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._threads = [
            threading.Thread(target=self._run, name="handler", daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    async def answer(self, request: Any) -> Any:
        """Returns the reply to one request; raises what `handle` raised for its batch."""
        future = asyncio.get_running_loop().create_future()
        self._unanswered.add(future)
        self._waiting.put([(request, future)])
        try:
            return await future
        finally:
            self._unanswered.discard(future)

    async def answer_all(self, requests: Sequence[Any]) -> list[Any]:
        """Returns the replies to requests that came together, which share batches if they can."""
        if len(requests) == 1:
            return [await self.answer(requests[0])]
        self._expected = max(self._expected, min(self._most, len(requests)))
        loop = asyncio.get_running_loop()
        group = [(request, loop.create_future()) for request in requests]
        futures = [future for _, future in group]
        self._unanswered.update(futures)
        self._waiting.put(group)
        try:
            return await asyncio.gather(*futures)
        finally:
            self._unanswered.difference_update(futures)
            for future in futures:
                future.cancel()  # those that nobody waits for, after an error

    def abandon(self, error: Exception) -> None:
        """Raises an error for every request that has no reply yet; runs in the event loop."""
        settle(list(self._unanswered), (), error)

    @property
    def running_s(self) -> float:
        """Seconds since the oldest of the current batches began; 0 without one."""
        since_s = list(self._since_s.values())
        return self._clock() - min(since_s) if since_s else 0.0

    def close(self) -> None:
        """Answers the requests that wait, then ends the threads."""
        self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._gather()
            if batch:
                self._answer(batch)
        self._waiting.put(None)  # for the next thread

    def _gather(self) -> tuple[list[Waiting], bool]:
        """Returns the next batch, and False after the last one."""
        batch: list[Waiting] = []
        # Groups that have had their share of this batch.
        later: deque[list[Waiting]] = deque()
        read_s, of_groups, is_closing = 0.0, 0, False
        group = self._waiting.get()
        end = self._clock() + self._delay_s
        while True:
            if group is None:
                is_closing = True
            elif len(group) > 1 and of_groups >= self._most_of_groups:
                later.append(group)
            else:
                of_groups += len(group) > 1
                first = group.pop(0)
                if group:  # the rest waits behind everybody else
                    self._waiting.put(group)
                if not first[1].cancelled():
                    batch.append(first)
                    read_s += self._predict_s(first[0])
            if len(batch) == self._most or len(batch) > 1 and read_s > BATCH_READ_S:
                break
            try:
                if len(batch) < self._expected and not later and not is_closing:
                    left_s = max(0.0, end - self._clock())
                    group = self._waiting.get(timeout=left_s)
                else:
                    group = self._waiting.get_nowait()
            except queue.Empty:
                if not later:
                    break
                # No lone request waits, so the groups may have all places.
                group, of_groups = later.popleft(), -self._most
                self._put_back(later)
        self._put_back(later)
        is_open = not is_closing or not self._waiting.empty()
        if is_closing and is_open:
            self._waiting.put(None)
        return batch, is_open

    def _put_back(self, groups: deque[list[Waiting]]) -> None:
        while groups:
            self._waiting.put(groups.popleft())

    def _answer(self, batch: Sequence[Waiting]) -> None:
        # Requests of clients that have hung up are not computed.
        waiting = [(request, future) for request, future in batch if not future.cancelled()]
        if not waiting:
            return
        futures = [future for _, future in waiting]
        replies: Sequence[Any] = ()
        failure: Exception | None = None
        me = threading.get_ident()
        self._since_s[me] = self._clock()
        try:
            replies = self._handle([request for request, _ in waiting])
        except Exception as error:
            failure = error
        del self._since_s[me]
        self._expected = min(self._most, len(waiting) + self._waiting.qsize())
        # One call for the whole batch, because each call wakes the event loop.
        loop = futures[0].get_loop()
        loop.call_soon_threadsafe(settle, futures, replies, failure)
        if failure is None and ALONE in replies:
            for one, reply in zip(waiting, replies):
                if reply is ALONE:
                    self._answer([one])


def settle(
    futures: Sequence[asyncio.Future[Any]], replies: Sequence[Any], failure: Exception | None
) -> None:
    """Sets the results of a batch; runs in the event loop."""
    for idx, future in enumerate(futures):
        if future.done():
            continue
        if failure is not None:
            future.set_exception(failure)
        elif replies[idx] is not ALONE:
            future.set_result(replies[idx])
