"""Batches of one worker, without a server."""

from __future__ import annotations

import asyncio
import threading

from offpath.serving.shell.batch_queue import BatchQueue


def gather(handle, count: int, most: int = 4, delay_s: float = 0.0):
    """Answers of `count` concurrent requests; an exception stands for a failure."""

    async def ask():
        batches = BatchQueue(handle, most, delay_s)
        waiting = [asyncio.ensure_future(batches.answer(n)) for n in range(count)]
        try:
            return await asyncio.gather(*waiting, return_exceptions=True)
        finally:
            await asyncio.to_thread(batches.close)

    return asyncio.run(ask())


def test_requests_that_waited_for_the_thread_form_batches_with_one_answer_each():
    seen: list[list[int]] = []
    is_full = threading.Event()

    def handle(requests):
        seen.append(list(requests))
        # The first batch lasts until all others wait.
        is_full.wait(0.2)
        return [10 * n for n in requests]

    assert gather(handle, 9, delay_s=0.05) == [10 * n for n in range(9)]
    assert [len(one) for one in seen] == [4, 4, 1]


def test_a_batch_that_hangs_is_seen_until_it_ends():
    may_go, lasted_s = threading.Event(), []

    def handle(requests):
        may_go.wait(5)
        return requests

    async def ask():
        batches = BatchQueue(handle, 1, 0.0)
        lasted_s.append(batches.running_s)
        waiting = asyncio.ensure_future(batches.answer(1))
        await asyncio.sleep(0.1)
        lasted_s.append(batches.running_s)
        may_go.set()
        await waiting
        await asyncio.to_thread(batches.close)
        lasted_s.append(batches.running_s)

    asyncio.run(ask())
    before, while_it_hangs, after = lasted_s
    assert (before, after) == (0.0, 0.0) and while_it_hangs > 0.05


def test_a_batch_that_fails_fails_for_each_of_its_requests_and_the_next_is_answered():
    def handle(requests):
        if 0 in requests:
            raise OSError("no model")
        return requests

    first, *others = gather(handle, 6, most=2, delay_s=0.05)
    assert isinstance(first, OSError) and isinstance(others[0], OSError)
    assert others[1:] == [2, 3, 4, 5]


def test_requests_of_clients_that_hang_up_are_skipped_and_close_answers_the_others():
    seen: list[int] = []
    may_go = threading.Event()

    def handle(requests):
        may_go.wait(5)
        seen.extend(requests)
        return requests

    async def ask():
        batches = BatchQueue(handle, 1, 0.0)
        waiting = [asyncio.ensure_future(batches.answer(n)) for n in range(3)]
        await asyncio.sleep(0.01)
        waiting[1].cancel()
        ending = asyncio.create_task(asyncio.to_thread(batches.close))
        await asyncio.sleep(0.01)
        may_go.set()
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        await ending
        return answers

    first, second, third = asyncio.run(ask())
    assert (first, third) == (0, 2) and isinstance(second, asyncio.CancelledError)
    assert seen == [0, 2]


def test_a_lone_request_does_not_wait_but_one_after_company_waits_for_the_others():
    seen: list[int] = []

    def handle(requests):
        seen.append(len(requests))
        return requests

    async def ask():
        batches = BatchQueue(handle, 4, 5.0)
        began = asyncio.get_running_loop().time()
        for n in range(3):
            await batches.answer(n)
        lone_s = asyncio.get_running_loop().time() - began
        # These two come while the thread is busy with the first, or all three at once.
        await asyncio.gather(*(batches.answer(n) for n in range(3)))
        seen.clear()
        late = [asyncio.ensure_future(batches.answer(0))]
        await asyncio.sleep(0.05)
        late += [asyncio.ensure_future(batches.answer(n)) for n in (1, 2)]
        await asyncio.gather(*late)
        await asyncio.to_thread(batches.close)
        return lone_s

    assert asyncio.run(ask()) < 1.0
    assert max(seen) > 1
