"""Requests gathered into batches for the one thread that answers them.

As TorchServe gathers: whatever waits when the thread is free, and for the first of a batch a short
wait for more. `serve.batch` closes a batch by its clock while the one before still runs, so that
under load the next is small: docs/research/2026-11-22-ray-serve.md has the figures.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

Waiting = tuple[Any, "asyncio.Future[Any]"]


class Batches:
    """A thread that answers batches.

    Args:
        handle: requests -> as many answers; runs in the thread.
        most: requests in a batch.
        delay_s: how long the first one waits for others while the thread has nothing else to do.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[Any]], Sequence[Any]],
        most: int,
        delay_s: float,
    ) -> None:
        self._handle, self._most, self._delay_s = handle, most, delay_s
        self._since_s: float | None = None
        self._waiting: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="handler", daemon=True)
        self._thread.start()

    async def answer(self, request: Any) -> Any:
        """One request's answer; raises what `handle` raised for its batch."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.put((request, future))
        return await future

    @property
    def running_s(self) -> float:
        """How long the thread has been at its batch."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def close(self) -> None:
        """Answers what waits, and ends the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._gather()
            if batch:
                self._answer(batch)

    def _gather(self) -> tuple[list[Waiting], bool]:
        """The next batch, and whether another may come."""
        batch: list[Waiting] = []
        first = self._waiting.get()
        end = time.monotonic() + self._delay_s
        while first is not None:
            batch.append(first)
            if len(batch) == self._most:
                return batch, True
            try:
                first = self._waiting.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return batch, True
        return batch, False

    def _answer(self, batch: Sequence[Waiting]) -> None:
        # Who has hung up is left out.
        alive = [one for one in batch if not one[1].cancelled()]
        if not alive:
            return
        futures = [future for _, future in alive]
        answers: Sequence[Any] = ()
        failure: Exception | None = None
        self._since_s = time.monotonic()
        try:
            answers = self._handle([request for request, _ in alive])
        except Exception as error:
            failure = error
        self._since_s = None
        # Once for the batch: each wakes the event loop.
        loop = futures[0].get_loop()
        loop.call_soon_threadsafe(settle, futures, answers, failure)


def settle(
    futures: Sequence[asyncio.Future[Any]],
    answers: Sequence[Any],
    failure: Exception | None,
) -> None:
    """In the event loop: hands the answers to those who wait."""
    for idx, future in enumerate(futures):
        if future.done():
            continue
        if failure is None:
            future.set_result(answers[idx])
        else:
            future.set_exception(failure)
