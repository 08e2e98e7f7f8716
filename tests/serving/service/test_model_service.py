"""A service whose handler waits: its clients' limits, and what it reads and leaves."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from offpath.handler.contract import LEFT, Item, Reply, Request
from offpath.handler.wire_names import BODY_HEADER, CLIENT_HEADER, FULL_HEADER
from offpath.serving.service import model_service
from offpath.serving.service.costs import LANE_NICE, MAX_COSTLY
from offpath.serving.service.kserve import READERS, Inference, read_v1
from offpath.serving.service.model_service import ModelService, ServiceSettings
from tests.guarantees import guarantee
from tests.support.eventually import in_event_loop

QUEUE, CONNECTIONS = 20, 6


class Waiting:
    """A model that answers when it may."""

    health = None
    read_s, deadline_ms, in_flight = 0.0, 0, 1

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.handled: list[bytes] = []
        self.counted: list[int] = []

    def classify(self, requests: Sequence[Request]) -> list[Reply]:
        self.handled += [request.body for request in requests]
        self.may_go.wait()
        return [Reply(200, {}, b"{}") for _ in requests]

    def close(self) -> None:
        pass


def open_request(request: Request) -> Request:
    file = request.headers.get(BODY_HEADER)
    return replace(request, body=Path(file).read_bytes()) if file else request


def make_service(handler: Waiting, has_door: bool = True, queue: int = QUEUE) -> ModelService:
    settings = ServiceSettings("m", None, 4, 0, 60.0, 1 << 20, queue, busy_status=429)
    opener = open_request if has_door else None
    return ModelService(handler, settings, count=handler.counted.append, open_request=opener)


async def until(look: Callable[[], object]) -> None:
    while not look():
        await asyncio.sleep(0.001)


async def ask(
    service: ModelService, address: str, images: int, queue: int = QUEUE, file: str = ""
) -> Reply:
    async def body() -> AsyncIterator[bytes]:
        yield make_body(images)

    headers = {CLIENT_HEADER: f"{address} {CONNECTIONS} {queue}"} if address else {}
    headers |= {BODY_HEADER: file} if file else {}
    return await service.answer("POST", "/v1/models/m:predict", headers, body())


def make_body(images: int) -> bytes:
    texts = [base64.b64encode(b"an image").decode()] * images
    return json.dumps({"instances": texts}).encode()


@guarantee(
    "Many images in one request",
    "serving/service/model_service.py",
    "self._of_client[client] + len(images) > max_of_client",
    "False",
)
@pytest.mark.parametrize(
    ("first", "second", "images", "has_door", "status"),
    [
        pytest.param("192.0.2.1", "192.0.2.1", 3, True, 429, id="too-many-of-one"),
        pytest.param("192.0.2.1", "192.0.2.1", 2, True, 200, id="as-many-as-allowed"),
        pytest.param("192.0.2.1", "192.0.2.2", 3, True, 200, id="of-another-client"),
        pytest.param("2001:db8::1", "2001:db8::2:3", 3, True, 429, id="of-one-network"),
        pytest.param("2001:db8::1", "2001:db8:0:1::1", 3, True, 200, id="of-another-network"),
        pytest.param("192.0.2.1", "192.0.2.1", 7, True, 400, id="more-than-ever-allowed"),
        pytest.param("192.0.2.1", "192.0.2.1", 7, False, 200, id="forged-without-a-door"),
    ],
)
@in_event_loop
async def test_the_images_of_one_client_are_limited(
    first: str, second: str, images: int, has_door: bool, status: int
) -> None:
    handler = Waiting()
    service = make_service(handler, has_door)
    sent = asyncio.ensure_future(ask(service, first, 4))
    await until(lambda: service.requests >= 4)
    asked = asyncio.ensure_future(ask(service, second, images))
    await until(lambda: asked.done() or service.requests == 4 + images)
    handler.may_go.set()
    assert ((await sent).status, (await asked).status) == (200, status)
    # What was answered does not count.
    assert (await ask(service, first, 6)).status == 200
    service.close()


@pytest.mark.parametrize("queue", [1000, CONNECTIONS])
@in_event_loop
async def test_the_limit_is_that_of_the_door(queue: int) -> None:
    handler = Waiting()
    handler.may_go.set()
    service = make_service(handler)
    statuses = [
        (await ask(service, "::1", n, queue)).status for n in (CONNECTIONS, CONNECTIONS + 1)
    ]
    assert statuses == [200, 400]
    assert set(handler.counted) == {1, -1}  # many images end no connections of others
    service.close()


@guarantee(
    "A canary that only fails",
    "serving/service/model_service.py",
    "if has_door and is_full:",
    "if False:",
)
@pytest.mark.parametrize(
    ("queue", "has_door", "status", "is_marked"),
    [
        pytest.param(0, True, 429, True, id="full"),
        pytest.param(0, False, 429, False, id="without-a-door"),
        pytest.param(QUEUE, True, 400, False, id="bad-request"),
    ],
)
@in_event_loop
async def test_a_worker_tells_the_door_that_its_queue_is_full(
    queue: int, has_door: bool, status: int, is_marked: bool
) -> None:
    service = make_service(Waiting(), has_door, queue)
    reply = await ask(service, "::1", CONNECTIONS + 1)
    assert (reply.status, FULL_HEADER in reply.headers) == (status, is_marked)
    service.close()


@in_event_loop
async def test_images_of_a_client_that_has_left_are_not_decoded(tmp_path: Path) -> None:
    file, handler = tmp_path / "body", Waiting()
    file.write_bytes(make_body(5))

    service = make_service(handler)
    task = asyncio.ensure_future(ask(service, "::1", 0, file=str(file)))
    await until(lambda: handler.handled)
    file.unlink()
    assert (await task).status == 503
    await until(lambda: not service.requests)
    handler.may_go.set()
    await asyncio.to_thread(service.close)
    assert len(handler.handled) == 4  # the first batch


@guarantee(
    "Many images in one request",
    "serving/service/model_service.py",
    "if has_few or not is_large or",
    "if True or",
)
@in_event_loop
async def test_a_client_with_many_images_is_read_when_it_has_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_service, "LEFT_CHECK_S", 0.02)
    monkeypatch.setattr(model_service, "LARGE_BYTES", 1)
    read: list[int] = []

    def note(body: bytes, headers: Mapping[str, str], images: int) -> Inference:
        read.append(len(body))
        return read_v1(body, headers, images)

    monkeypatch.setitem(READERS, "v1", note)

    handler = Waiting()
    service = make_service(handler)
    sent = [asyncio.ensure_future(ask(service, "192.0.2.1", n)) for n in (4, 3)]
    other = asyncio.ensure_future(ask(service, "192.0.2.2", 1))
    await until(lambda: len(read) >= 2)
    handler.may_go.set()
    assert [(await one).status for one in (*sent, other)] == [200, 200, 200]
    assert read == [len(make_body(n)) for n in (4, 1, 3)]
    await asyncio.to_thread(service.close)


@guarantee("Costly JSON, base64 and forms")
@in_event_loop
async def test_bodies_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, handler = 0, 0, Waiting()
    handler.may_go.set()
    waiting: list[int] = []

    def read(body: bytes, headers: Mapping[str, str], images: int) -> Inference:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.02)
        waiting.append(service.requests)
        running -= 1
        return read_v1(body, headers, images)

    monkeypatch.setitem(READERS, "v1", read)

    service = make_service(handler)
    replies = await asyncio.gather(*(ask(service, f"192.0.2.{n}", 2) for n in range(8)))
    assert [one.status for one in replies] == [200] * 8
    await asyncio.to_thread(service.close)
    assert (most, waiting[0]) == (1, 8)


class Leaving(Waiting):
    """A classifier that leaves costly images, and reads each when it may."""

    def classify(self, requests: Sequence[Request]) -> list[Reply]:
        self.handled += [request.body for request in requests]
        return [Reply(LEFT if one.body == b"costly" else 200, {}, b"{}") for one in requests]

    def read(self, request: Request) -> Item:
        self.may_go.wait()
        self.nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return Item(request)

    def answer(self, items: Sequence[Item]) -> list[Reply]:
        return [Reply(200, {}, item.request.body) for item in items]


async def predict(service: ModelService, body: bytes, **headers: str) -> Reply:
    async def parts() -> AsyncIterator[bytes]:
        yield body

    return await service.answer("POST", "/predictions/m", headers, parts())


@guarantee(
    "Costly images",
    "serving/service/model_service.py",
    "if reply.status == LEFT:",
    "if False:",
)
@in_event_loop
async def test_a_costly_image_is_read_beside_the_batches_and_few_of_them_wait() -> None:
    handler = Leaving()
    service = make_service(handler, has_door=False)
    costly = [asyncio.ensure_future(predict(service, b"costly")) for _ in range(MAX_COSTLY + 1)]
    done, _ = await asyncio.wait(costly, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().status for task in done] == [429]
    assert [(await predict(service, b"cheap")).status for _ in range(3)] == [200] * 3
    handler.may_go.set()
    replies = await asyncio.gather(*costly)
    assert sorted((one.status, one.body) for one in replies)[:-1] == [(200, b"costly")] * 8
    assert handler.nice == os.getpriority(os.PRIO_PROCESS, 0) + LANE_NICE
    await asyncio.to_thread(service.close)


@guarantee(
    "More requests than the queue holds",
    "serving/service/model_service.py",
    "if self.requests >= tried and self.wait_s > min(allowed_s, self.costs.max_wait_s):",
    "if False:",
)
@pytest.mark.parametrize(("impatient_until_s", "tried"), [(0.0, 8), (float("inf"), 2)])
@in_event_loop
async def test_a_request_that_would_wait_too_long_is_refused_late_and_unread(
    monkeypatch: pytest.MonkeyPatch, impatient_until_s: float, tried: int
) -> None:
    monkeypatch.setattr(model_service, "HELD_S", 0.05)
    monkeypatch.setattr(model_service, "MAX_HELD", 1)

    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    handler = Waiting()
    service = make_service(handler, has_door=False)
    service.costs.learn([Request(b"")], 20.0, 0.0)
    service.costs._patience_s, service.costs._impatient_until_s = 100.0, impatient_until_s
    # Two batches are tried whatever the prediction is, of one request where clients give up.
    sent = [asyncio.ensure_future(predict(service, b"")) for _ in range(tried)]
    await until(lambda: service.requests >= tried)
    left = asyncio.ensure_future(predict(service, b""))
    await asyncio.sleep(0.01)
    left.cancel()  # its client has left, and it is held back no more
    await asyncio.sleep(0)
    began_s = time.monotonic()
    reply = await service.answer("POST", "/predictions/m", {}, body())
    retry_s = int(reply.headers["Retry-After"])
    assert reply.status == 429 and 20 * tried <= retry_s <= 40 * tried
    assert time.monotonic() - began_s >= 0.05
    handler.may_go.set()
    assert [(await one).status for one in sent] == [200] * tried
    await asyncio.to_thread(service.close)


@in_event_loop
async def test_a_request_is_refused_at_once_that_has_less_time_than_it_would_wait() -> None:
    handler = Waiting()
    service = make_service(handler)
    service.costs.learn([Request(b"")], 0.25, 0.0)
    sent = [asyncio.ensure_future(predict(service, b"")) for _ in range(8)]
    await until(lambda: service.requests >= 8)
    for given_ms, archives_ms in ((1500, 0), (60_000, 1500)):
        handler.deadline_ms = archives_ms
        late = await predict(service, b"late", **{"x-request-timeout-ms": str(given_ms)})
        assert late.status == 429
    handler.deadline_ms = 0
    sent.append(asyncio.ensure_future(predict(service, b"", **{"x-request-timeout-ms": "3000"})))
    handler.may_go.set()
    assert [(await one).status for one in sent] == [200] * 9
    assert b"late" not in handler.handled
    await asyncio.to_thread(service.close)


@guarantee(
    "More requests than the queue holds",
    "serving/service/model_service.py",
    "        oldest_s = began_s - self.costs.max_age_s\n",
    "        oldest_s = 0.0\n",
)
@in_event_loop
async def test_a_request_is_not_begun_for_a_client_that_will_leave_before_the_answer() -> None:
    handler = Waiting()
    service = make_service(handler, has_door=False)
    first = asyncio.ensure_future(predict(service, b"first"))
    await until(lambda: handler.handled)
    late = asyncio.ensure_future(predict(service, b"late"))
    await until(lambda: service.requests >= 2)
    service.costs._patience_s, service.costs._impatient_until_s = 0.01, float("inf")
    await asyncio.sleep(0.01)
    handler.may_go.set()
    assert ((await first).status, (await late).status) == (200, 429)
    assert handler.handled == [b"first"]
    await asyncio.to_thread(service.close)
