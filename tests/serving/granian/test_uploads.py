"""The memory for bodies: late and slow uploads."""

from __future__ import annotations

import asyncio

import pytest

from offpath.serving.granian import uploads
from offpath.serving.granian.uploads import BodyMemory
from offpath.serving.shell.torchserve_http import BUSY, TOO_SLOW, Refusal, Refused


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


def test_the_oldest_slow_upload_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[Refusal | None]:
        memory, end = BodyMemory(100), asyncio.Event()
        slow = []
        for size in (40, 30, 30):
            slow.append(asyncio.create_task(upload(memory, size, end)))
            await asyncio.sleep(0)
        refused = await upload(memory, 10, end)
        monkeypatch.setattr(uploads, "SLOW_S", 0.0)
        last = asyncio.create_task(upload(memory, 40, end))
        await asyncio.sleep(0)
        end.set()
        return [refused, await last, *await asyncio.gather(*slow)]

    # The first request comes when no upload is slow. The second one ends the first upload only.
    assert asyncio.run(run()) == [BUSY, None, BUSY, None, None]


def test_an_upload_ends_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[Refusal | None]:
        memory, end = BodyMemory(100), asyncio.Event()
        late = asyncio.create_task(upload(memory, 100, end))
        await asyncio.sleep(0)
        memory.end_late_uploads()
        monkeypatch.setattr(uploads, "MOST_S", 0.0)
        memory.end_late_uploads()
        end.set()
        return [await late, await upload(memory, 100, end)]

    assert asyncio.run(run()) == [TOO_SLOW, None]


def test_a_single_body_always_fits() -> None:
    async def run() -> Refusal | None:
        end = asyncio.Event()
        end.set()
        return await upload(BodyMemory(10), 100, end)

    assert asyncio.run(run()) is None
