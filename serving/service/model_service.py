"""The way of a request through any server of ours, from its path and headers to its reply.

`answer` is for servers that pass single requests, `answer_batch` for those that make batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import IPv6Network
from pathlib import Path
from typing import Any, cast

from offpath.handler.contract import LEFT, Classifier, Item, Model, Publish, Reply, Request
from offpath.handler.deadline import read_allowed_ms
from offpath.handler.error_kinds import BUSY, MODEL_GONE, TOO_MANY
from offpath.handler.wire_names import (
    BODY_HEADER,
    CLIENT_HEADER,
    EXPLAIN_HEADER,
    FULL_HEADER,
    ID_HEADER,
    REQUEST_ID_HEADER,
)
from offpath.serving.service.archived_classifier import load_classifier
from offpath.serving.service.batch_queue import BatchQueue
from offpath.serving.service.costs import MAX_COSTLY, Costs, find_size, make_lane
from offpath.serving.service.kserve import (
    MAX_INSTANCES,
    READERS,
    Read,
    add_error_text,
    find_failure,
    list_pages,
    merge_headers,
    speaks_kserve,
    split_request,
)
from offpath.serving.service.messages import (
    HEALTHY,
    PING,
    WORDS,
    ModelPaths,
    Refused,
    Served,
    make_event_id,
)

logger = logging.getLogger(__name__)
# How often a client of several images is looked for.
LEFT_CHECK_S = 0.25
# Batches whose requests are accepted whatever their predicted wait is.
TRIED_BATCHES = 2
# Seconds for which a refusal is held back, and the most of them at a time.
HELD_S, MAX_HELD = 1.0, 2000
# A request of KServe with a larger body waits for so long at most while its client has others here.
LARGE_BYTES, LARGE_WAIT_S = 1_000_000, 4.0
# Of a request that has waited too long for a client that gives up.
LATE = Reply(BUSY.status, {}, b"")
# Room for the text of a form or of JSON around the image.
ENVELOPE_BYTES = 65_536


@dataclass(frozen=True)
class ServiceSettings:
    """The settings of one process that answers for a model.

    Attributes:
        version: None if paths name none.
        response_timeout_s: a batch that takes longer hangs.
        max_requests: requests that may wait or be computed; more are refused.
        threads: threads of this process; None for the archive's own setting.
        served: all models of the server, if it has several.
        is_foreign: another archive's own code, which gets requests of KServe as they are.
        busy_status: of a request that is refused because this process is full.
    """

    name: str
    version: str | None
    batch_size: int
    max_batch_delay_ms: int
    response_timeout_s: float
    max_body_bytes: int
    max_requests: int
    threads: int | None = None
    served: Served = field(default_factory=dict)
    is_foreign: bool = False
    busy_status: int = BUSY.status


def largest_body_bytes(max_payload_bytes: int) -> int:
    """Returns the size of the largest body that can hold an image of this size: base64 in JSON."""
    return -(-max_payload_bytes // 3) * 4 + ENVELOPE_BYTES


@lru_cache(maxsize=1024)
def name_client(address: str) -> str:
    """Returns what counts as one client, as in nginx.conf: an IPv6 network of 64 bits is one."""
    return str(IPv6Network((address, 64), strict=False)) if ":" in address else address


async def await_client(answer: Awaitable[list[Reply]], file: str) -> list[Reply]:
    """Waits until the client leaves: the door then removes its body, which is in `file`."""
    task = asyncio.ensure_future(answer)
    try:
        while not (await asyncio.wait([task], timeout=LEFT_CHECK_S))[0]:
            if not os.path.exists(file):
                raise Refused(MODEL_GONE)
        return task.result()
    finally:
        task.cancel()  # so that images that nobody waits for are not decoded


def ignore(*_: object) -> None:
    """Is told what happens and does nothing."""


class ModelService:
    """Answers requests for one version of a model.

    Args:
        model: may leave some of several requests to a batch of their own: their reply is ALONE.
        count_requests: counts replies by status, seconds that they took, and number.
        count: gets +1 when a request begins to wait for its batch, and -1 when it is answered.
        on_sick: gets the diagnosis after each batch of a broken model, in the batch's thread.
        open_request: gives a request the body that the front door has named, or raises Refused;
            None without a door. A door chooses ids, and counts its replies.

    Attributes:
        costs: what requests cost here, and whether clients leave.
        requests: requests that wait or are being computed.
        answered, took_s, waited_s: replies of the model, the seconds that they took in all, and
            the seconds that their requests waited for a batch.
    """

    def __init__(
        self,
        model: Model,
        settings: ServiceSettings,
        count_requests: Callable[..., None] = ignore,
        count: Callable[[int], None] = ignore,
        on_sick: Callable[[str], None] = ignore,
        open_request: Callable[[Request], Request] | None = None,
    ) -> None:
        self._model, self._settings = model, settings
        self._classifier = cast(Classifier, model)  # where `classify` leaves images
        self._count_requests, self._count, self._on_sick = count_requests, count, on_sick
        self._open_request = open_request
        name, version = settings.name, settings.version
        served = settings.served or {name: [] if version is None else [version]}
        self._paths = ModelPaths(name, version, settings.max_body_bytes, served)
        pages = list_pages(name, version, served[name], settings.is_foreign)
        self._pages = {PING: HEALTHY, **pages}
        # As V2 names them.
        self._names = {"model_name": settings.name}
        if settings.version is not None:
            self._names["model_version"] = settings.version
        self.costs = Costs(settings.response_timeout_s / 2, model.in_flight)
        self._batches = BatchQueue(
            self._handle,
            settings.batch_size,
            settings.max_batch_delay_ms / 1000,
            predict_s=self.costs.predict_read_s,
            threads=model.in_flight,
        )
        # Costly images leave their batch for the lane, whose thread starts with the first one.
        self._lane, self._costly = make_lane(), 0
        self._reading = asyncio.Lock()
        # Client -> its requests here, where a front door names clients.
        self._of_client: Counter[str] = Counter()
        # Of `answer_batch`; its thread starts with the first batch.
        self._pool = ThreadPoolExecutor(1, "batch")
        self._late: Future[list[Reply]] | None = None
        # Held by the threads that handle batches.
        self._counting = threading.Lock()
        self._has_ended = False
        self.requests = self.answered = self._held = 0
        self.took_s = self.waited_s = 0.0

    @property
    def health(self) -> str | None:
        """The reason why this process must be replaced; None while its model works."""
        max_s = self._settings.response_timeout_s
        is_late = self._late is not None and not self._late.done()
        if is_late or self._batches.running_s > max_s:
            return f"a batch has been running for more than {max_s} s"
        return self._model.health

    async def answer(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: AsyncIterator[bytes],
        client_id: str = "",
    ) -> Reply:
        """Answers one HTTP request.

        Args:
            path: without escapes.
            headers: their names in lower case; the model gets them, with marks of ours.
            body: the parts of the body. It may raise Refused.
            client_id: the client's or server's id of the request, with which ours begins.
        """
        began_s, has_door = time.monotonic(), self._open_request is not None
        if path in self._pages:
            return Refused(MODEL_GONE).reply if self._has_ended else self._pages[path]
        request_id, is_foreign = "", self._settings.is_foreign
        try:
            call = self._paths.find(method, path, headers.get("content-length"))
            headers = {name: value for name, value in headers.items() if name not in WORDS}
            headers[EXPLAIN_HEADER] = str(call.explains)
            request_id = headers.get(ID_HEADER, "") if has_door else make_event_id(client_id)
            read = None if is_foreign else READERS.get(call.protocol)
            reply = await self._reply(Request(b"", request_id, headers), body, read, began_s)
        except Refused as refused:
            is_full = refused.kind == BUSY
            if is_full:
                refused.kind = BUSY._replace(status=self._settings.busy_status)
            reply = refused.reply
            if has_door and is_full:
                reply.headers[FULL_HEADER] = "1"
        if reply.status != 200 and speaks_kserve(path) and not is_foreign:
            reply = add_error_text(reply)
        if not has_door:  # which counts its own replies, and sends the id itself
            self._count_requests(reply.status, time.monotonic() - began_s)
            if request_id:
                reply.headers[REQUEST_ID_HEADER] = request_id
        return reply

    async def _reply(
        self, request: Request, body: AsyncIterator[bytes], read: Read | None, began_s: float
    ) -> Reply:
        """Returns the model's reply.

        Args:
            request: without its body.
            read: reads a request of KServe, which may have several images; None for one image.

        Raises:
            Refused: too many requests wait, the body is too large or slow, the model is gone, or
                `read` refuses it.
        """
        headers = request.headers
        await self._check_wait(read_allowed_ms(headers, self._model.deadline_ms) / 1e3)
        client, max_of_client = self._read_client(headers)
        file = headers.get(BODY_HEADER, "") if self._open_request is not None else ""
        content = b"" if file else await self._read(body)
        request = replace(request, body=content, arrived_s=time.monotonic())
        del content  # whose memory KServe's images replace
        if read is None:  # the model opens a named body
            # An upload has no place, because it may never end.
            self._check_queue()
            with self._places(1, client):
                (reply,) = await self._answer([request], began_s)
            return reply
        # Others keep half of the queue, because the door counts this as one request.
        most = min(MAX_INSTANCES, max(1, self._settings.max_requests // 2), max_of_client)
        images, write = await self._read_images(request, read, most, client, max_of_client)
        request = replace(request, body=b"")  # whose memory is held for the images from now on
        if len(images) > 1 and self._of_client[client] + len(images) > max_of_client:
            raise Refused(TOO_MANY)
        self._check_queue(len(images))
        with self._places(len(images), client):
            answer = self._answer(images, began_s)
            replies = await (await_client(answer, file) if file else answer)
        failed = find_failure(replies)
        if failed is not None:
            return failed
        return merge_headers(replies, write(replies, {**self._names, "id": request.id}))

    async def _read_images(
        self, request: Request, read: Read, most: int, client: str, max_of_client: int
    ) -> tuple[list[Request], Callable[..., bytes]]:
        """Returns a request for each image, and what makes one body of their replies.

        A large one waits until its client has less than half of its images here, so count them at
        once. Those that get a 429 would otherwise be read, for 20 ms each, as fast as they come.
        """
        is_large = bool(client) and find_size(request) > LARGE_BYTES
        end_s = time.monotonic() + LARGE_WAIT_S
        while True:
            # One by one, because a text may take six times the memory of its body.
            with self._places(1, ""):
                async with self._reading:
                    has_few = 2 * self._of_client[client] < max_of_client
                    if has_few or not is_large or time.monotonic() > end_s:
                        if self._open_request is not None:
                            request = self._open_request(request)
                        # In a thread, because a large one takes long.
                        found = await asyncio.to_thread(read, request.body, request.headers, most)
                        return split_request(request, found.payloads), found.write
            await asyncio.sleep(LEFT_CHECK_S)

    def _read_client(self, headers: Mapping[str, str]) -> tuple[str, int]:
        """Returns the client by the front door's word, and how many images it may have here.

        The door limits its requests. Those with several images get `client-connections` of this
        process too, but at most the client's share of the queue, or half of the queue.
        """
        most = self._settings.max_requests
        given = headers.get(CLIENT_HEADER, "").split()
        if self._open_request is None or len(given) != 3:
            return "", most
        address, connections, queue = given[0], int(given[1]), int(given[2])
        share = max(most // 2, most * connections // queue)
        return name_client(address), max(1, min(connections, share))

    async def _answer(self, requests: Sequence[Request], began_s: float) -> list[Reply]:
        replies: list[Reply] = await self._batches.answer_all(requests)
        for idx, reply in enumerate(replies):
            if reply is LATE:
                raise Refused(BUSY, self.wait_s)
            if reply.status == LEFT:
                replies[idx] = await self._answer_costly(requests[idx])
        self.answered += len(requests)
        self.took_s += len(requests) * (time.monotonic() - began_s)
        return replies

    async def _answer_costly(self, request: Request) -> Reply:
        """Returns the reply to a costly image, which is read in the lane and predicted alone."""
        if self._costly == MAX_COSTLY:
            raise Refused(BUSY, self.wait_s)
        self._costly += 1
        try:
            loop = asyncio.get_running_loop()
            reply: Reply = await self._batches.answer(
                await loop.run_in_executor(self._lane, self._classifier.read, request)
            )
            return reply
        finally:
            self._costly -= 1

    async def _read(self, body: AsyncIterator[bytes]) -> bytes:
        """Reads a body to its end; raises Refused as soon as it is too large."""
        parts, size = [], 0
        async with contextlib.aclosing(body) as rest:  # type: ignore[type-var]
            async for part in rest:
                size += len(part)
                if size > self._paths.max_body_bytes:
                    raise Refused(self._paths.too_large)
                if part:
                    parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _check_wait(self, allowed_s: float) -> None:
        """Refuses a request whose body is not read yet, if it would wait too long or has no place.

        It would wait too long for itself, too, if it only has `allowed_s`.
        Without a door a refusal comes late: clients that come back at once would take the cores
        from the requests that wait.
        """
        try:
            # A prediction may be wrong after one slow batch, so some requests are always tried.
            # Impatient clients would leave before full batches of large images are answered.
            size = 1 if self.costs.has_impatient_clients else self._settings.batch_size
            tried = TRIED_BATCHES * size
            if self.requests >= tried and self.wait_s > min(allowed_s, self.costs.max_wait_s):
                raise Refused(BUSY, self.wait_s)
            self._check_queue()
        except Refused as refused:
            if refused.kind == BUSY and self._open_request is None and self._held < MAX_HELD:
                self._held += 1
                try:
                    await asyncio.sleep(min(allowed_s, HELD_S))
                finally:  # also where the client has left
                    self._held -= 1
            raise

    def _check_queue(self, requests: int = 1) -> None:
        if self._has_ended:
            raise Refused(MODEL_GONE)
        if self.requests + requests > self._settings.max_requests:
            raise Refused(BUSY, self.wait_s)

    @property
    def wait_s(self) -> float:
        """The predicted seconds until a request that comes now is answered."""
        return self.costs.predict_wait_s(self.requests)

    @contextlib.contextmanager
    def _places(self, requests: int, client: str) -> Iterator[None]:
        """Takes places in the queue, which count for a client, whether or not there is room."""
        self.requests += requests
        self._of_client[client] += requests
        # Once for all images of a request: a worker that counts more than others ends connections.
        self._count(1)
        try:
            yield
        finally:
            self.requests -= requests
            self._of_client[client] -= requests
            if not self._of_client[client]:
                del self._of_client[client]
            self._count(-1)

    def _handle(self, batch: Sequence[Request | Item]) -> list[Reply]:
        """Answers a batch of requests, and of items from the lane, in a thread of `BatchQueue`."""
        began_s = time.monotonic()
        # Late ones would be answered after their clients have left.
        oldest_s = began_s - self.costs.max_age_s
        requests = [one for one in batch if isinstance(one, Request) and one.arrived_s >= oldest_s]
        items = [one for one in batch if not isinstance(one, Request)]
        with self._counting:
            self.waited_s += sum(began_s - request.arrived_s for request in requests)
        try:
            replies: dict[int, Reply] = {}
            if requests:
                answers = self._model.classify(requests)
                replies.update(zip(map(id, requests), answers, strict=True))
                took_s = time.monotonic() - began_s
                with self._counting:
                    self.costs.learn(requests, took_s, self._model.read_s)
            if items:
                answers = self._classifier.answer(items)
                replies.update(zip(map(id, items), answers, strict=True))
        except (Exception, SystemExit) as error:
            # A classifier answers every failure itself; this one is a bug in it, or `sys.exit`.
            logger.exception("the classifier failed on a batch")
            raise Refused(MODEL_GONE) from error
        if self._model.health is not None:
            self._on_sick(self._model.health)
        return [replies.get(id(one), LATE) for one in batch]

    def answer_batch(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers a batch that the server has made; refuses it if the model hangs or is broken."""
        began_s = time.monotonic()
        gone = [Refused(MODEL_GONE).reply for _ in requests]
        if self.health is not None:
            return gone
        batch = self._pool.submit(self._model.classify, requests)
        try:
            replies = batch.result(self._settings.response_timeout_s)
        except LateError:
            self._late = batch
            return gone
        took_s = time.monotonic() - began_s
        for status, number in Counter(reply.status for reply in replies).items():
            self._count_requests(status, took_s, number)
        return replies

    def end(self) -> None:
        """Refuses all requests from now on, and those without a reply."""
        self._has_ended = True
        self._batches.abandon(Refused(MODEL_GONE))

    def close(self) -> None:
        """Answers the requests that wait, then ends the model; blocks."""
        self._lane.shutdown(cancel_futures=True)
        self._batches.close()
        self._model.close()


def load_service(
    folder: Path, fields: Mapping[str, Any], gpu: int | None, publish: Publish
) -> ModelService:
    """Loads and warms up an unpacked archive, with the fields of `ServiceSettings`; for exports."""
    settings = ServiceSettings(**fields)
    classifier = load_classifier(folder, settings.batch_size, gpu, settings.threads, publish)
    classifier.warm_up()
    return ModelService(classifier, settings, classifier.metrics.count_requests)
