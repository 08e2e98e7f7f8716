"""HTTP as TorchServe has it: POST or PUT /predictions/NAME and /explanations/NAME, GET /ping."""

# What it imports is installed where Ray is.
# mypy: ignore-errors

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

if TYPE_CHECKING:
    from offpath.deploy.archived_handler import Answer, Request

FOLDER = Path(__file__).parent
# name, batch_size, max_batch_delay_ms, max_payload_bytes, threads: from the archive.
SETTINGS = json.loads((FOLDER / "settings.json").read_text(encoding="utf-8"))
PREDICTIONS = f"/predictions/{SETTINGS['name']}"
EXPLANATIONS = f"/explanations/{SETTINGS['name']}"
# A form's own text around the picture.
ENVELOPE_BYTES = 65_536
JSON_TYPE = "application/json"
ID_HEADER = "x-request-id"
ID_FORM = re.compile("[A-Za-z0-9-]{1,64}")
HEALTHY = b'{"status":"Healthy"}'


async def read_request(http: HttpRequest) -> Request | Response:
    """The picture to classify, or at once the answer to anything else."""
    # Here: whoever only reads the configuration needs neither torch nor the archive.
    from archived_handler import Request

    path = http.scope["path"]
    if path == "/ping":
        return Response(HEALTHY, media_type=JSON_TYPE)
    if path not in (PREDICTIONS, EXPLANATIONS):
        return refuse(404, "NotFound", "no such path; POST /predictions/NAME")
    if http.method not in ("POST", "PUT"):
        return refuse(405, "MethodNotAllowed", "send the picture by POST or PUT")
    body = await read_body(http, SETTINGS["max_payload_bytes"] + ENVELOPE_BYTES)
    if body is None:
        limit = SETTINGS["max_payload_bytes"]
        return refuse(413, "PayloadTooLarge", f"at most {limit} bytes are accepted")
    headers = dict(http.headers)
    if path == EXPLANATIONS:
        # TorchServe's own word to a handler (explain in ts/torch_handler/base_handler.py).
        headers["explain"] = "True"
    return Request(body, make_event_id(headers.get(ID_HEADER, "")), headers)


def make_event_id(given: str) -> str:
    """The reply's `x-request-id`, which Ray gives or takes from the client, and a word of ours.

    A client's could repeat, and the prediction log keeps one of each.
    """
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


def make_response(answer: Answer) -> Response:
    """An archive's answer."""
    return Response(answer.body, answer.status, dict(answer.headers))


def refuse(status: int, kind: str, message: str) -> Response:
    """An error of our shape."""
    content = json.dumps({"code": status, "type": kind, "message": message})
    return Response(content, status, media_type=JSON_TYPE)
