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


async def upload_together(
    memory: BodyMemory, clock: Clock, *uploads: tuple[int, float]
) -> list[Refusal | None]:
    """Begins an upload of each size, followed by a pause, and ends them together."""
    end, begun = asyncio.Event(), []
    for size, pause_s in uploads:
        begun.append(asyncio.create_task(upload(memory, size, end)))
        await asyncio.sleep(0)
        clock.pass_s(pause_s)
        memory.end_late_uploads()
    end.set()
    return await asyncio.gather(*begun)


def test_the_oldest_slow_upload_makes_room() -> None:
    clock = Clock()
    half_s = SLOW_S / 2
    uploads = (40, 0.0), (30, 0.0), (30, half_s), (10, half_s), (40, 0.0)
    refusals = asyncio.run(upload_together(BodyMemory(100, clock), clock, *uploads))
    # The fourth comes when no upload is slow. The fifth ends the first upload only.
    assert refusals == [BUSY, None, None, BUSY, None]


def test_an_upload_ends_at_the_time_limit() -> None:
    clock = Clock()
    uploads = (50, MOST_S / 2), (50, MOST_S / 2), (50, 0.0)
    refusals = asyncio.run(upload_together(BodyMemory(100, clock), clock, *uploads))
    # The third has the room of the first.
    assert refusals == [TOO_SLOW, None, None]


def test_a_single_body_always_fits() -> None:
    async def run() -> Refusal | None:
        end = asyncio.Event()
        end.set()
        return await upload(BodyMemory(10), 100, end)

    assert asyncio.run(run()) is None
