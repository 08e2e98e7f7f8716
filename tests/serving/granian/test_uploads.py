"""The memory for bodies: late and slow uploads."""

from __future__ import annotations

import asyncio

from offpath.serving.granian.uploads import MOST_S, SLOW_S, BodyMemory
from offpath.serving.shell.torchserve_http import BUSY, TOO_SLOW, Refusal, Refused
from tests.support.clock import Clock


async def upload(memory: BodyMemory, size: int, end: asyncio.Event) -> Refusal | None:
    """Uploads until `end`; returns the refusal."""

    async def read() -> bytes:
        await end.wait()
        return bytes(size)

    try:
        with memory.hold(size) as body:
            assert len(await memory.receive(body, read())) == size
    except Refused as refused:
        return refused.refusal
    return None


def test_the_oldest_slow_upload_makes_room() -> None:
    async def run() -> list[Refusal | None]:
        clock, end = Clock(), asyncio.Event()
        memory, slow = BodyMemory(100, clock), []
        for size in (40, 30, 30):
            slow.append(asyncio.create_task(upload(memory, size, end)))
            await asyncio.sleep(0)
        clock.pass_s(SLOW_S / 2)
        refused = await upload(memory, 10, end)
        clock.pass_s(SLOW_S / 2)
        last = asyncio.create_task(upload(memory, 40, end))
        await asyncio.sleep(0)
        end.set()
        return [refused, await last, *await asyncio.gather(*slow)]

    # The first request comes when no upload is slow. The second one ends the first upload only.
    assert asyncio.run(run()) == [BUSY, None, BUSY, None, None]


def test_an_upload_ends_at_the_time_limit() -> None:
    async def run() -> list[Refusal | None]:
        clock, end = Clock(), asyncio.Event()
        memory, uploads = BodyMemory(100, clock), []
        for _ in range(2):
            uploads.append(asyncio.create_task(upload(memory, 50, end)))
            await asyncio.sleep(0)
            clock.pass_s(MOST_S / 2)
        memory.end_late_uploads()
        end.set()
        return [*await asyncio.gather(*uploads), await upload(memory, 100, end)]

    assert asyncio.run(run()) == [TOO_SLOW, None, None]


def test_a_single_body_always_fits() -> None:
    async def run() -> Refusal | None:
        end = asyncio.Event()
        end.set()
        return await upload(BodyMemory(10), 100, end)

    assert asyncio.run(run()) is None
