"""The memory for bodies: late and slow uploads, and those of which nothing arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from offpath.handler.error_kinds import BUSY, TOO_SLOW, ErrorKind
from offpath.serving.granian.uploads import FIRST_S, MAX_S, SLOW_S, BodyMemory
from offpath.serving.service.messages import Refused
from tests.guarantees import guarantee
from tests.support.clock import Clock


async def upload(
    memory: BodyMemory, end: asyncio.Event, declared: int, parts: Sequence[int]
) -> ErrorKind | None:
    """Uploads the parts, a turn of the loop for each, and waits for `end`; returns the refusal."""
    try:
        with memory.hold(declared) as body, memory.receive(body):
            for part in parts:
                memory.grow(body, part)
                await asyncio.sleep(0)
            await end.wait()
    except Refused as refused:
        return refused.kind
    return None


async def upload_together(
    memory: BodyMemory, clock: Clock, *uploads: tuple[int | Sequence[int], float]
) -> list[ErrorKind | None]:
    """Begins uploads, each followed by a pause, and ends them together.

    Args:
        memory: holds the bodies.
        clock: passes the pauses.
        uploads: the declared size or the parts that arrive, and the pause in seconds.
    """
    end, begun = asyncio.Event(), []
    for size, pause_s in uploads:
        declared, parts = (size, ()) if isinstance(size, int) else (0, size)
        begun.append(asyncio.create_task(upload(memory, end, declared, parts)))
        for _ in range(1 + len(parts)):
            await asyncio.sleep(0)
        clock.pass_s(pause_s)
        memory.end_late_uploads()
    end.set()
    return await asyncio.gather(*begun)


def run(*uploads: tuple[int | Sequence[int], float]) -> list[ErrorKind | None]:
    clock = Clock()
    return asyncio.run(upload_together(BodyMemory(100, clock), clock, *uploads))


def test_the_oldest_slow_upload_makes_room() -> None:
    half_s = SLOW_S / 2
    # The fourth comes when no upload is slow. The fifth ends the first upload only.
    uploads = (40, 0.0), (30, 0.0), (30, half_s), (10, half_s), (40, 0.0)
    assert run(*uploads) == [BUSY, None, None, BUSY, None]


def test_a_flood_of_large_uploads_makes_room_for_a_small_body_at_once() -> None:
    # The last is too large to end any of those that are left.
    uploads = (50, 0.0), (50, 0.0), (3, 0.0), (47, 0.0), (4, 0.0)
    assert run(*uploads) == [BUSY, None, None, None, BUSY]


@guarantee(
    "Slow clients, half bodies, crowds",
    "serving/granian/uploads.py",
    "(MAX_S if body.size else FIRST_S)",
    "MAX_S",
)
def test_uploads_of_which_nothing_arrives_take_no_room_and_end_soon() -> None:
    uploads = *[((), 0.0)] * 200, ((60, 40), 0.0), ((10,), FIRST_S), ((), 0.0)
    # The memory is full at the second part of the 201st upload. The last one has time left.
    assert run(*uploads) == [*[TOO_SLOW] * 200, None, BUSY, None]


def test_a_part_of_a_slow_upload_ends_older_ones_and_no_younger_one() -> None:
    async def grow_last() -> list[ErrorKind | None]:
        clock, end = Clock(), asyncio.Event()
        memory = BodyMemory(100, clock)
        oldest = asyncio.create_task(upload(memory, end, 50, ()))
        await asyncio.sleep(0)
        with memory.hold(20) as body, memory.receive(body):
            youngest = asyncio.create_task(upload(memory, end, 30, ()))
            await asyncio.sleep(0)
            clock.pass_s(SLOW_S)
            memory.grow(body, 50)
            try:
                memory.grow(body, 10)
            except Refused as refused:
                end.set()
                return [await oldest, await youngest, refused.kind]
        raise AssertionError("there was no room")

    assert asyncio.run(grow_last()) == [BUSY, None, BUSY]


def test_an_upload_ends_at_the_time_limit() -> None:
    uploads = (50, MAX_S / 2), (50, MAX_S / 2), (50, 0.0)
    # The third has the room of the first.
    assert run(*uploads) == [TOO_SLOW, None, None]


def test_a_single_body_always_fits() -> None:
    assert run((1000, 0.0)) == [None]
    assert run(((500, 500), 0.0)) == [None]
