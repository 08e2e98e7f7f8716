"""Speaks TorchServe's HTTP: POST or PUT /predictions/NAME and /explanations/NAME, GET /ping."""

# Its imports exist only where Ray is installed.
# mypy: ignore-errors

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

if TYPE_CHECKING:
    from offpath.deploy.archived_handler import Answer, Request

FOLDER = Path(__file__).parent
# Written by the export from the archive: name, batch_size, max_payload_bytes and more.
SETTINGS = json.loads((FOLDER / "settings.json").read_text(encoding="utf-8"))
PREDICTIONS = f"/predictions/{SETTINGS['name']}"
EXPLANATIONS = f"/explanations/{SETTINGS['name']}"
# Room for the text of a form around the image.
ENVELOPE_BYTES = 65_536
JSON_TYPE = "application/json"
ID_HEADER = "x-request-id"
HEALTHY = b'{"status":"Healthy"}'


async def read_request(http: HttpRequest) -> Request | Response:
    """Returns the image to classify, or the response to any other request."""
    # Imported here, because Ray's controller reads the configuration without torch.
    from archived_handler import Request, make_event_id

    path = http.scope["path"]
    if path == "/ping":
        return Response(HEALTHY, media_type=JSON_TYPE)
    if path not in (PREDICTIONS, EXPLANATIONS):
        return refuse(404, "NotFound", "no such path; POST /predictions/NAME")
    if http.method not in ("POST", "PUT"):
        return refuse(405, "MethodNotAllowed", "send the image by POST or PUT")
    body = await read_body(http, SETTINGS["max_payload_bytes"] + ENVELOPE_BYTES)
    if body is None:
        limit = SETTINGS["max_payload_bytes"]
        return refuse(413, "PayloadTooLarge", f"at most {limit} bytes are accepted")
    headers = dict(http.headers)
    if path == EXPLANATIONS:
        # TorchServe's word to a handler (explain in ts/torch_handler/base_handler.py).
        headers["explain"] = "True"
    # Ray makes the id, or takes it from the client.
    return Request(body, make_event_id(headers.get(ID_HEADER, "")), headers)


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
    """Converts an answer of the archive."""
    return Response(answer.body, answer.status, dict(answer.headers))


def refuse(status: int, kind: str, message: str) -> Response:
    """Makes an error response in the form of the archive's own."""
    content = json.dumps({"code": status, "type": kind, "message": message})
    return Response(content, status, media_type=JSON_TYPE)
