"""Speaks TorchServe's HTTP in Ray (torchserve_http.py), over Starlette's requests."""

# Its imports exist only where Ray is installed.
# mypy: ignore-errors

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

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
