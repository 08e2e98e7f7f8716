"""The way of a request through any server of ours, from its path and headers to its reply.

`answer` is for servers that pass single requests, `answer_batch` for those that make batches.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from offpath.handler.error_kinds import BUSY, MODEL_GONE
from offpath.handler.wire_names import BODY_HEADER, EXPLAIN_HEADER, REQUEST_ID_HEADER
from offpath.serving.service.archived_handler import ArchivedHandler, MakeMetric
from offpath.serving.service.batch_queue import BatchQueue
from offpath.serving.service.messages import Reply, Request, make_event_id
from offpath.serving.service.refusals import HEALTHY, PING, ModelPaths, Refused

logger = logging.getLogger(__name__)
# Room for the text of a form or of JSON around the image.
ENVELOPE_BYTES = 65_536


@dataclass(frozen=True)
class ServiceSettings:
    """The settings of one process that answers for a model.

    Attributes:
        version: None if paths name none.
        response_timeout_s: a batch that takes longer hangs.
        most_requests: requests that may wait or be computed; more are refused.
        has_door: the front door sends the requests. It chooses their ids, counts its replies, and
            may pass a body by name.
        threads: threads of this process; None for the archive's own setting.
    """

    name: str
    version: str | None
    batch_size: int
    max_batch_delay_ms: int
    response_timeout_s: float
    max_body_bytes: int
    most_requests: int
    has_door: bool = False
    threads: int | None = None


class Handler(Protocol):
    """An `ArchivedHandler`, or another archive's own code: it answers batches."""

    @property
    def diagnosis(self) -> str | None:
        """The reason why this process must be replaced; None while its model works."""

    def handle(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers a batch, one reply per request, in order."""

    def count_requests(self, status: int, seconds: float, number: int = 1) -> None:
        """Counts the time of answered requests."""

    def close(self) -> None:
        """Ends the handler after its last batch."""


def largest_body_bytes(max_payload_bytes: int) -> int:
    """Returns the size of the largest body that can hold an image of this size: base64 in JSON."""
    return -(-max_payload_bytes // 3) * 4 + ENVELOPE_BYTES


def ignore(_: object) -> None:
    """Is told what happens and does nothing."""


class ModelService:
    """Answers requests for one version of a model.

    Args:
        count: gets +1 when a request begins to wait for its batch, and -1 when it is answered.
        on_sick: gets the diagnosis after each batch of a broken model, in the batch's thread.

    Attributes:
        requests: requests that wait or are being computed.
        answered, took_s, waited_s: replies of the handler, the seconds that they took in all, and
            the seconds that their requests waited for a batch.
    """

    def __init__(
        self,
        handler: Handler,
        settings: ServiceSettings,
        count: Callable[[int], None] = ignore,
        on_sick: Callable[[str], None] = ignore,
    ) -> None:
        self._handler, self._settings = handler, settings
        self._count, self._on_sick = count, on_sick
        self._paths = ModelPaths(settings.name, settings.version, settings.max_body_bytes)
        self._batches = BatchQueue(
            self._handle, settings.batch_size, settings.max_batch_delay_ms / 1000
        )
        self._has_ended = False
        self.requests = self.answered = 0
        self.took_s = self.waited_s = 0.0

    @property
    def health(self) -> str | None:
        """The reason why this process must be replaced; None while its model works."""
        running_s = self._batches.running_s
        if running_s > self._settings.response_timeout_s:
            return f"a batch has been running for {running_s:.0f} s"
        return self._handler.diagnosis

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
            headers: their names in lower case; the handler gets them, with marks of ours.
            body: the parts of the body. It may raise Refused.
            client_id: the client's or server's id of the request, with which ours begins.
        """
        began_s, has_door = time.monotonic(), self._settings.has_door
        if path == PING:
            return Refused(MODEL_GONE).reply if self._has_ended else HEALTHY
        request_id = ""
        try:
            is_explanation = self._paths.asks_for_explanation(
                method, path, headers.get("content-length")
            )
            if is_explanation:
                headers[EXPLAIN_HEADER] = "True"
            if not has_door:
                request_id = make_event_id(client_id)
            reply = await self._predict(headers, body, request_id, began_s)
        except Refused as refused:
            reply = refused.reply
        if not has_door:  # which counts its own replies
            self._handler.count_requests(reply.status, time.monotonic() - began_s)
        if request_id:
            reply.headers[REQUEST_ID_HEADER] = request_id
        return reply

    async def _predict(
        self, headers: dict[str, str], body: AsyncIterator[bytes], request_id: str, began_s: float
    ) -> Reply:
        """Returns the handler's reply.

        Raises:
            Refused: too many requests wait, the body is too large or slow, or the model is gone.
        """
        self._check_queue()
        content = b""
        if not (self._settings.has_door and headers.get(BODY_HEADER)):  # which the handler opens
            content = await self._read(body)
            # An upload does not count as a request that waits, because it may never end.
            self._check_queue()
        request = Request(content, request_id, headers, time.monotonic())
        self._add(1)
        try:
            reply: Reply = await self._batches.answer(request)
        finally:
            self._add(-1)
        self.answered += 1
        self.took_s += time.monotonic() - began_s
        return reply

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

    def _check_queue(self) -> None:
        if self._has_ended:
            raise Refused(MODEL_GONE)
        if self.requests >= self._settings.most_requests:
            raise Refused(BUSY)

    def _add(self, requests: int) -> None:
        self.requests += requests
        self._count(requests)

    def _handle(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers a batch; runs in the thread of `BatchQueue`."""
        now_s = time.monotonic()
        self.waited_s += sum(now_s - request.arrived_s for request in requests)
        try:
            replies = self._handler.handle(requests)
        except Exception as error:
            # The handler answers every failure itself; this one is a bug in it.
            logger.exception("the handler failed on a batch")
            raise Refused(MODEL_GONE) from error
        if self._handler.diagnosis is not None:
            self._on_sick(self._handler.diagnosis)
        return replies

    def answer_batch(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers a batch that the server has made, in the calling thread."""
        began_s = time.monotonic()
        if self.health is not None:
            return [Refused(MODEL_GONE).reply for _ in requests]
        replies = self._handler.handle(requests)
        took_s = time.monotonic() - began_s
        for status, number in Counter(reply.status for reply in replies).items():
            self._handler.count_requests(status, took_s, number)
        return replies

    def end(self) -> None:
        """Refuses all requests from now on, and those without a reply."""
        self._has_ended = True
        self._batches.abandon(Refused(MODEL_GONE))

    def close(self) -> None:
        """Answers the requests that wait, then ends the handler; blocks."""
        self._batches.close()
        self._handler.close()


def load_service(
    folder: Path, fields: Mapping[str, Any], gpu: int | None, make_metric: MakeMetric
) -> ModelService:
    """Loads and warms up an unpacked archive, with the fields of `ServiceSettings`; for exports."""
    settings = ServiceSettings(**fields)
    handler = ArchivedHandler(folder, settings.batch_size, gpu, settings.threads, make_metric)
    handler.warm_up()
    return ModelService(handler, settings)
