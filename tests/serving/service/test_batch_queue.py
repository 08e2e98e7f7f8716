"""Batches of one worker, without a server: tests say when a batch ends, and set the clock."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from offpath.serving.service import batch_queue
from offpath.serving.service.batch_queue import ALONE, BATCH_READ_S, BatchQueue
from tests.guarantees import guarantee
from tests.support.clock import Clock
from tests.support.eventually import eventually, in_event_loop

HOUR_S = 3600.0


class Gate:
    """A handler that keeps its first batch until it may go."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_go = threading.Event()

    def __call__(self, requests: Sequence[int]) -> list[int]:
        self.batches.append(list(requests))
        self.may_go.wait()
        if 1 in requests:
            raise OSError("no model")
        return [10 * n for n in requests]


class WatchedQueue(queue.SimpleQueue):
    """Notes how long its reader is ready to wait; None means for ever."""

    asked: list[float | None] = []

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        self.asked.append(timeout)
        return super().get(block, timeout)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Returns what the thread of a `BatchQueue` asks its queue."""
    monkeypatch.setattr(WatchedQueue, "asked", [])
    watched = SimpleNamespace(SimpleQueue=WatchedQueue, Empty=queue.Empty)
    monkeypatch.setattr(batch_queue, "queue", watched)
    return WatchedQueue.asked


async def send(batches: BatchQueue, *requests: int) -> list[asyncio.Future[int]]:
    """Puts requests into the queue."""
    sent = [asyncio.ensure_future(batches.answer(n)) for n in requests]
    await asyncio.sleep(0)  # until each of them waits for its answer
    return sent


@in_event_loop
async def test_waiting_requests_form_batches_that_are_answered_or_fail_as_a_whole():
    gate = Gate()
    batches = BatchQueue(gate, 4, 0.0)
    sent = await send(batches, 0)
    eventually(lambda: gate.batches)
    sent += await send(batches, *range(1, 9))
    gate.may_go.set()
    first, *others = await asyncio.gather(*sent, return_exceptions=True)
    assert gate.batches == [[0], [1, 2, 3, 4], [5, 6, 7, 8]]
    assert first == 0 and others[4:] == [50, 60, 70, 80]
    assert [type(one) for one in others[:4]] == 4 * [OSError]
    batches.close()


@in_event_loop
async def test_a_batch_closes_when_its_images_take_long_to_read():
    gate = Gate()
    batches = BatchQueue(gate, 4, 0.0, predict_s=lambda request: request * BATCH_READ_S / 10)
    sent = await send(batches, 0)
    eventually(lambda: gate.batches)
    sent += await send(batches, 8, 8, 2, 3, 4, 5, 20)
    gate.may_go.set()
    await asyncio.gather(*sent)
    assert gate.batches == [[0], [8, 8], [2, 3, 4, 5], [20]]
    batches.close()


@in_event_loop
async def test_a_second_thread_takes_a_batch_while_the_first_is_busy():
    gate, clock = Gate(), Clock()
    batches = BatchQueue(gate, 2, 0.0, clock, threads=2)
    sent = await send(batches, 0)
    eventually(lambda: gate.batches == [[0]])
    clock.pass_s(5.0)
    sent += await send(batches, 2)
    eventually(lambda: gate.batches == [[0], [2]])
    sent += await send(batches, 3)
    assert batches.running_s == 5.0
    threading.Thread(target=batches.close, daemon=True).start()
    eventually(lambda: batches._waiting.qsize() == 2)
    gate.may_go.set()
    assert await asyncio.gather(*sent) == [0, 20, 30]
    eventually(lambda: not any(thread.is_alive() for thread in batches._threads))
    assert batches.running_s == 0.0


@in_event_loop
async def test_close_answers_all_but_the_requests_of_clients_that_hung_up():
    gate = Gate()
    batches = BatchQueue(gate, 1, 0.0)
    sent = await send(batches, 0, 2, 3)
    eventually(lambda: gate.batches)
    sent[1].cancel()
    threading.Thread(target=batches.close, daemon=True).start()
    eventually(lambda: batches._waiting.qsize() == 3)
    gate.may_go.set()
    first, second, third = await asyncio.gather(*sent, return_exceptions=True)
    assert (first, third) == (0, 30) and isinstance(second, asyncio.CancelledError)
    assert gate.batches == [[0], [3]]


@in_event_loop
async def test_a_lone_request_does_not_wait(asked: list[float | None]):
    gate = Gate()
    gate.may_go.set()
    batches = BatchQueue(gate, 4, HOUR_S)
    assert [await batches.answer(n) for n in (2, 3, 4)] == [20, 30, 40]
    batches.close()
    assert set(asked) == {None}


@in_event_loop
async def test_a_request_after_company_waits_for_as_many_until_the_delay_is_over(
    asked: list[float | None],
):
    gate, clock = Gate(), Clock()
    batches = BatchQueue(gate, 4, HOUR_S, clock)
    sent = await send(batches, 0)
    eventually(lambda: gate.batches)
    sent += await send(batches, 2, 3)
    gate.may_go.set()
    # Three were in flight when the first batch ended, so these two wait for a third.
    eventually(lambda: asked == [None, None, HOUR_S, HOUR_S])
    sent += await send(batches, 4)
    await asyncio.gather(*sent)
    sent = await send(batches, 5)
    eventually(lambda: asked[4:] == [None, HOUR_S])
    clock.pass_s(HOUR_S)
    sent += await send(batches, 6)
    await asyncio.gather(*sent)
    assert asked[6] == 0.0
    assert gate.batches == [[0], [2, 3, 4], [5, 6]]
    batches.close()


@guarantee(
    "Many images in one request",
    "serving/service/batch_queue.py",
    "                if group:  # the rest waits behind everybody else",
    "                while group and len(batch) + 1 < self._most:\n"
    "                    batch.append(first)\n"
    "                    first = group.pop(0)\n"
    "                if group:",
)
@in_event_loop
async def test_a_group_takes_turns_with_all_others_and_is_answered_at_the_end_too():
    gate = Gate()
    batches = BatchQueue(gate, 4, 0.0)
    sent = await send(batches, 0)
    eventually(lambda: gate.batches)
    groups = [asyncio.ensure_future(batches.answer_all(range(n, n + 5))) for n in (20, 30)]
    await asyncio.sleep(0)
    sent += await send(batches, 2, 3)
    threading.Thread(target=batches.close, daemon=True).start()
    eventually(lambda: batches._waiting.qsize() == 5)
    gate.may_go.set()
    await asyncio.gather(*sent)
    assert await groups[0] == [200, 210, 220, 230, 240]
    assert await groups[1] == [300, 310, 320, 330, 340]
    assert gate.batches == [[0], [20, 2, 3, 30], [21, 31, 22, 32], [23, 24, 33, 34]]


@in_event_loop
async def test_a_request_that_must_be_alone_is_answered_after_its_batch():
    asked: list[list[int]] = []

    def handle(requests: Sequence[int]) -> list[int | None]:
        asked.append(list(requests))
        return [ALONE if n == 2 and len(requests) > 1 else 10 * n for n in requests]

    batches = BatchQueue(handle, 4, HOUR_S)
    assert await batches.answer_all([2, 3, 4, 2]) == [20, 30, 40, 20]
    assert asked == [[2, 3, 4, 2], [2], [2]]
    batches.close()
