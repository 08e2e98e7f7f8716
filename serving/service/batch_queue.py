"""The queue of a model's requests, which become batches."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

Waiting = tuple[Any, "asyncio.Future[Any]"]


class BatchQueue:
    """A queue of requests, and the thread that answers them in batches, in the way of TorchServe.

    Whatever waits when the thread is free becomes a batch. The first request of a batch waits for
    others only where others were there a moment ago, so a lone request never waits. `serve.batch`
    instead closes a batch by its clock while the previous one still runs, so that batches are small
    under load: docs/research/2026-11-22-ray-serve.md has the figures.

    Args:
        handle: takes the requests of a batch and returns as many replies; runs in the thread.
        most: the most requests in a batch.
        delay_s: how long the first request of a batch waits at most for as many others as were in
            flight when the last batch ended.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[Any]], Sequence[Any]],
        most: int,
        delay_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._handle, self._most, self._delay_s = handle, most, delay_s
        self._clock = clock
        self._since_s: float | None = None
        self._expected = 1
        self._waiting: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="handler", daemon=True)
        self._thread.start()

    async def answer(self, request: Any) -> Any:
        """Returns the reply to one request; raises what `handle` raised for its batch."""
        future = asyncio.get_running_loop().create_future()
        self._unanswered.add(future)
        self._waiting.put((request, future))
        try:
            return await future
        finally:
            self._unanswered.discard(future)

    async def answer_all(self, requests: Sequence[Any]) -> list[Any]:
        """Returns the replies to requests that came together, which share a batch if they fit."""
        if len(requests) == 1:
            return [await self.answer(requests[0])]
        self._expected = max(self._expected, min(self._most, len(requests)))
        return await asyncio.gather(*map(self.answer, requests))

    def abandon(self, error: Exception) -> None:
        """Raises an error for every request that has no reply yet; runs in the event loop."""
        settle(list(self._unanswered), (), error)

    @property
    def running_s(self) -> float:
        """Seconds since the thread began its current batch; 0 while it is idle."""
        since_s = self._since_s
        return 0.0 if since_s is None else self._clock() - since_s

    def close(self) -> None:
        """Answers the requests that wait, then ends the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._gather()
            if batch:
                self._answer(batch)

    def _gather(self) -> tuple[list[Waiting], bool]:
        """Returns the next batch, and False after the last one."""
        batch: list[Waiting] = []
        first = self._waiting.get()
        end = self._clock() + self._delay_s
        while first is not None:
            batch.append(first)
            if len(batch) == self._most:
                return batch, True
            try:
                if len(batch) < self._expected:
                    left_s = max(0.0, end - self._clock())
                    first = self._waiting.get(timeout=left_s)
                else:
                    first = self._waiting.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _answer(self, batch: Sequence[Waiting]) -> None:
        # Requests of clients that have hung up are not computed.
        waiting = [(request, future) for request, future in batch if not future.cancelled()]
        if not waiting:
            return
        futures = [future for _, future in waiting]
        replies: Sequence[Any] = ()
        failure: Exception | None = None
        self._since_s = self._clock()
        try:
            replies = self._handle([request for request, _ in waiting])
        except Exception as error:
            failure = error
        self._since_s = None
        self._expected = min(self._most, len(waiting) + self._waiting.qsize())
        # One call for the whole batch, because each call wakes the event loop.
        loop = futures[0].get_loop()
        loop.call_soon_threadsafe(settle, futures, replies, failure)


def settle(
    futures: Sequence[asyncio.Future[Any]], replies: Sequence[Any], failure: Exception | None
) -> None:
    """Sets the results of a batch; runs in the event loop."""
    for idx, future in enumerate(futures):
        if future.done():
            continue
        if failure is None:
            future.set_result(replies[idx])
        else:
            future.set_exception(failure)
