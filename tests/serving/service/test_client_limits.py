"""Limits on the images of one client, in a service whose handler waits."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace

import pytest

from offpath.handler.wire_names import CLIENT_HEADER, FULL_HEADER
from offpath.serving.service.messages import Reply, Request
from offpath.serving.service.model_service import ModelService, ServiceSettings
from tests.support.guarantees import guarantee

QUEUE, CONNECTIONS = 20, 6


class Waiting:
    """A handler that answers when it may."""

    is_foreign, health = False, SimpleNamespace(diagnosis=None)

    def __init__(self) -> None:
        self.may_go = threading.Event()

    def count_requests(self, *_: object) -> None:
        pass

    def handle(self, requests: Sequence[Request]) -> list[Reply]:
        self.may_go.wait()
        return [Reply(200, {}, b"{}") for _ in requests]

    def close(self) -> None:
        pass


async def ask(service: ModelService, address: str, images: int, queue: int = QUEUE) -> Reply:
    async def body() -> AsyncIterator[bytes]:
        texts = [base64.b64encode(b"an image").decode()] * images
        yield json.dumps({"instances": texts}).encode()

    headers = {CLIENT_HEADER: f"{address} {CONNECTIONS} {queue}"} if address else {}
    return await service.answer("POST", "/v1/models/m:predict", headers, body())


@guarantee(
    "Many images in one request",
    "serving/service/model_service.py",
    "self._of_client[client] + len(images) > most_of_client",
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
def test_the_images_of_one_client_are_limited(
    first: str, second: str, images: int, has_door: bool, status: int
) -> None:
    async def run() -> None:
        handler = Waiting()
        settings = ServiceSettings("m", None, 4, 0, 60.0, 1 << 20, QUEUE, has_door)
        service = ModelService(handler, settings)
        sent = asyncio.ensure_future(ask(service, first, 4))
        while service.requests < 4:
            await asyncio.sleep(0.001)
        asked = asyncio.ensure_future(ask(service, second, images))
        while not asked.done() and service.requests < 4 + images:
            await asyncio.sleep(0.001)
        handler.may_go.set()
        assert ((await sent).status, (await asked).status) == (200, status)
        # What was answered does not count.
        assert (await ask(service, first, 6)).status == 200
        service.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("queue", "most"),
    [
        pytest.param(1000, 6, id="as-many-as-connections"),
        pytest.param(6, 6, id="all-of-the-queue"),
    ],
)
def test_the_limit_is_that_of_the_door(queue: int, most: int) -> None:
    async def run() -> None:
        handler = Waiting()
        handler.may_go.set()
        settings = ServiceSettings("m", None, 4, 0, 60.0, 1 << 20, QUEUE, True)
        service = ModelService(handler, settings)
        statuses = [(await ask(service, "::1", n, queue)).status for n in (most, most + 1)]
        assert statuses == [200, 400]
        service.close()

    asyncio.run(run())


@guarantee(
    "A canary that only fails",
    "serving/service/model_service.py",
    "if has_door and refused.kind == BUSY:",
    "if False:",
)
@pytest.mark.parametrize(
    ("queue", "has_door", "status", "is_marked"),
    [
        pytest.param(0, True, 503, True, id="full"),
        pytest.param(0, False, 503, False, id="without-a-door"),
        pytest.param(QUEUE, True, 400, False, id="bad-request"),
    ],
)
def test_a_worker_tells_the_door_that_its_queue_is_full(
    queue: int, has_door: bool, status: int, is_marked: bool
) -> None:
    async def run() -> None:
        settings = ServiceSettings("m", None, 4, 0, 60.0, 1 << 20, queue, has_door)
        service = ModelService(Waiting(), settings)
        reply = await ask(service, "::1", CONNECTIONS + 1)
        assert (reply.status, FULL_HEADER in reply.headers) == (status, is_marked)
        service.close()

    asyncio.run(run())
