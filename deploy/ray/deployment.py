"""A Ray Serve application that answers HTTP requests with the archive beside this file.

It speaks TorchServe's HTTP (torchserve_http.py). The event loop only receives and sends. Decoding
and the model run in the thread of `BatchQueue`.
"""

# Its imports exist only where Ray is installed.
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import ray
from batch_queue import BatchQueue
from ray import serve
from ray.serve.metrics import Counter, Gauge
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from torchserve_http import (
    ENVELOPE_BYTES,
    HEALTHY,
    JSON_TYPE,
    PING,
    ModelPaths,
    Refusal,
)

if TYPE_CHECKING:
    from offpath.serving.shell.archived_handler import Answer, Request

FOLDER = Path(__file__).parent
# Written by the export from the archive: name, batch_size, max_payload_bytes and more.
SETTINGS = json.loads((FOLDER / "settings.json").read_text(encoding="utf-8"))
PATHS = ModelPaths(SETTINGS["name"], None, SETTINGS["max_payload_bytes"] + ENVELOPE_BYTES)
ID_HEADER = "x-request-id"


@serve.deployment
class Classifier:
    """A replica with the model; config.yaml sets the number of replicas and their resources."""

    def __init__(self) -> None:
        # Imported here, because Ray's controller reads the configuration without torch.
        from archived_handler import ArchivedHandler

        gpus = ray.get_gpu_ids()
        self._handler = ArchivedHandler(
            FOLDER / "archive",
            batch_size=SETTINGS["batch_size"],
            # Ray shows a replica only its own devices, numbered from 0.
            gpu=0 if gpus else None,
            threads=SETTINGS["threads"],
            make_metric=RayMetric,
        )
        # The handler takes one batch at a time, and decodes in its own threads.
        self._batches = BatchQueue(
            self._handler.handle,
            SETTINGS["batch_size"],
            SETTINGS["max_batch_delay_ms"] / 1000,
        )

    async def __call__(self, http: HttpRequest) -> Response:
        began_s = time.monotonic()
        request = await read_request(http)
        if isinstance(request, Response):
            return request
        answer = await self._batches.answer(request)
        self._handler.count_requests(answer.status, time.monotonic() - began_s)
        return make_response(answer)

    async def check_health(self) -> None:
        """Raises if the model is broken, or a batch takes longer than TorchServe would allow.

        Ray calls this every few seconds, and ends a replica after three errors. The event loop
        keeps running while the model hangs, so Ray would not notice otherwise.
        """
        if self._handler.diagnosis is not None:
            raise RuntimeError(f"the model is broken: {self._handler.diagnosis}")
        running_s = self._batches.running_s
        if running_s > SETTINGS["response_timeout_s"]:
            raise RuntimeError(f"a batch has been running for {running_s:.0f} s")

    async def __del__(self) -> None:
        """Uploads the rest of the prediction log; Ray calls this at a graceful stop."""
        if hasattr(self, "_batches"):
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._batches.close()
        self._handler.close()


async def read_request(http: HttpRequest) -> Request | Response:
    """Returns the image to classify, or the response to any other request."""
    # Imported here, because Ray's controller reads the configuration without torch.
    from archived_handler import Request, make_event_id

    path, headers = http.scope["path"], dict(http.headers)
    if path == PING:
        return Response(HEALTHY, media_type=JSON_TYPE)
    refusal = PATHS.refuse(http.method, path, headers.get("content-length"))
    if refusal is not None:
        return make_refusal(refusal)
    body = await read_body(http, PATHS.max_body_bytes)
    if body is None:
        return make_refusal(PATHS.too_large)
    if PATHS.is_explanation(path):
        # TorchServe's word to a handler (explain in ts/torch_handler/base_handler.py).
        headers["explain"] = "True"
    # Ray makes the id, or takes it from the client.
    event_id = make_event_id(headers.get(ID_HEADER, ""))
    return Request(body, event_id, headers, time.monotonic())


async def read_body(http: HttpRequest, max_bytes: int) -> bytes | None:
    """Reads the body; returns None as soon as the body exceeds `max_bytes`."""
    parts, size = [], 0
    async for part in http.stream():
        size += len(part)
        if size > max_bytes:
            return None
        parts.append(part)
    return b"".join(parts)


def make_response(answer: Answer) -> Response:
    return Response(answer.body, answer.status, dict(answer.headers))


def make_refusal(refusal: Refusal) -> Response:
    return Response(refusal.body, refusal.status, media_type=JSON_TYPE)


class RayMetric:
    """A metric of the handler on Ray's page, labelled with deployment and replica."""

    def __init__(self, name: str, labels: Sequence[str], is_counter: bool) -> None:
        # Ray appends `_total` to the name of a counter, and prepends `ray_`.
        make = Counter if is_counter else Gauge
        self._metric = make(
            name.removesuffix("_total") if is_counter else name,
            description=f"{name}, see docs/reference.md",
            tag_keys=tuple(labels),
        )
        self._is_counter = is_counter

    def add(self, labels: Mapping[str, str], value: float) -> None:
        if self._is_counter:
            # Ray refuses the 0 that makes a counter visible from the start elsewhere.
            if value > 0:
                self._metric.inc(value, tags=dict(labels))
        else:
            self._metric.set(value, tags=dict(labels))


app = Classifier.bind()
