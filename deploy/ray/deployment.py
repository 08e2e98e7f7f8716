"""A Ray Serve application: HTTP in, batches to the archive beside this file, HTTP out.

Paths and answers are TorchServe's: POST or PUT /predictions/NAME, GET /ping. The event loop only
receives and sends; decoding and the model run in an executor's one thread.
"""

# What it imports is installed where Ray is.
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.util.metrics import Counter, Gauge
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

if TYPE_CHECKING:
    from offpath.deploy.archived_handler import Request

FOLDER = Path(__file__).parent
# name, batch_size, max_batch_delay_ms, max_payload_bytes, threads: from the archive.
SETTINGS = json.loads((FOLDER / "settings.json").read_text(encoding="utf-8"))
# A form's own text around the picture.
ENVELOPE_BYTES = 65_536
JSON_TYPE = "application/json"
ID_HEADER = "x-request-id"
ID_FORM = re.compile("[A-Za-z0-9-]{1,64}")
HEALTHY = b'{"status":"Healthy"}'


@serve.deployment
class Classifier:
    """A replica; how many, and on what, stands in config.yaml."""

    def __init__(self) -> None:
        # Here: whoever only reads the configuration needs neither torch nor the archive.
        from archived_handler import ArchivedHandler

        gpus = ray.get_gpu_ids()
        self._handler = ArchivedHandler(
            FOLDER / "archive",
            batch_size=SETTINGS["batch_size"],
            # Ray shows a replica its own devices alone, numbered from 0.
            gpu=0 if gpus else None,
            threads=SETTINGS["threads"],
            make_series=RaySeries,
        )
        # One thread: the handler takes a batch at a time, and decodes in threads of its own.
        self._executor = ThreadPoolExecutor(1, "handler")

    async def __call__(self, http: HttpRequest) -> Response:
        """Answers one request."""
        if http.url.path == "/ping":
            return Response(HEALTHY, media_type=JSON_TYPE)
        if http.url.path != f"/predictions/{SETTINGS['name']}":
            return refuse(404, "NotFound", "no such path; POST /predictions/NAME")
        if http.method not in ("POST", "PUT"):
            return refuse(405, "MethodNotAllowed", "send the picture by POST or PUT")
        body = await read_body(http, SETTINGS["max_payload_bytes"] + ENVELOPE_BYTES)
        if body is None:
            limit = SETTINGS["max_payload_bytes"]
            return refuse(413, "PayloadTooLarge", f"at most {limit} bytes are accepted")
        from archived_handler import Request

        request = Request(body, make_event_id(http), dict(http.headers))
        answer = await self._answer(request)
        return Response(answer.body, answer.status, dict(answer.headers))

    @serve.batch(
        max_batch_size=SETTINGS["batch_size"],
        batch_wait_timeout_s=SETTINGS["max_batch_delay_ms"] / 1000,
    )
    async def _answer(self, requests: list[Request]) -> list[Any]:
        """A batch, gathered from concurrent calls."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._executor, self._handler.handle, requests
        )

    async def __del__(self) -> None:
        """Ray calls this at a graceful end: the prediction log ships what it has."""
        handler = getattr(self, "_handler", None)
        if handler is not None:
            await asyncio.get_running_loop().run_in_executor(None, handler.close)


def make_event_id(http: HttpRequest) -> str:
    """The reply's `x-request-id`, which Ray gives or takes from the client, and a word of ours.

    A client's could repeat, and the prediction log keeps one of each.
    """
    given = http.headers.get(ID_HEADER, "")
    own = uuid.uuid4()
    return f"{given}.{own.hex[:12]}" if ID_FORM.fullmatch(given) else str(own)


async def read_body(http: HttpRequest, max_bytes: int) -> bytes | None:
    """The body; None as soon as it is longer than it may be."""
    parts, size = [], 0
    async for part in http.stream():
        size += len(part)
        if size > max_bytes:
            return None
        parts.append(part)
    return b"".join(parts)


def refuse(status: int, kind: str, message: str) -> Response:
    """An error of our shape."""
    content = json.dumps({"code": status, "type": kind, "message": message})
    return Response(content, status, media_type=JSON_TYPE)


class RaySeries:
    """A metric on Ray's own metrics page."""

    def __init__(self, name: str, labels: Sequence[str], is_counter: bool) -> None:
        # Ray adds `_total` to a counter's name, and `ray_` before it.
        make = Counter if is_counter else Gauge
        self._metric = make(
            name.removesuffix("_total") if is_counter else name,
            description=f"{name}, see docs/reference.md",
            tag_keys=tuple(labels),
        )
        self._is_counter = is_counter

    def add(self, labels: Mapping[str, str], value: float) -> None:
        """Adds to a counter, or sets a gauge."""
        if self._is_counter:
            # Ray refuses a 0, by which other servers show a counter from the start.
            if value > 0:
                self._metric.inc(value, tags=dict(labels))
        else:
            self._metric.set(value, tags=dict(labels))


app = Classifier.bind()
