"""A request's row -> the image's bytes, in memory; what TorchServe hands over is never copied.

A row is TorchServe's dict of parameters: `data` for a form field, `body` for a raw body; behind the
front door `body` may be a file's name (handed_over.py).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from offpath.handler.errors import BadEnvelope, EmptyPayload, PayloadTooLarge
from offpath.handler.image.formats import MAGICS
from offpath.handler.request.body_from_front_door import fields_of

Payload = bytes | bytearray | memoryview

# Keys under which a JSON body may carry the base64 text.
JSON_KEYS = ("data", "body", "b64")
# Of what is taken as it is; anything else may be an envelope of text.
BINARY_MAGICS = (*MAGICS, b"\x93NUMPY")
# An envelope holds one text. A body of `{},{},...` would become 11 million objects: 800 MB.
MAX_JSON_VALUES = 1000
JSON_STRUCTURE = (b",", b"{", b"[")
WHITE_SPACE = b" \t\n\r\v\f"


def read_payload(row: Mapping[str, Any], max_bytes: int) -> Payload:
    """Takes the image's bytes out of a row.

    Accepts raw bytes, base64 text (as the stock handler does) and JSON that is a base64 string or
    an object with it under one of JSON_KEYS.

    Raises:
        EmptyPayload, PayloadTooLarge, BadEnvelope: this item gets a 4xx.
        BodyGone, BodyUnreadable: the front door's file.
    """
    fields = fields_of(row)
    value = fields.get("data") or fields.get("body")
    if not value:
        raise EmptyPayload("no image: send it as the body or as the form field `data`")
    if isinstance(value, (bytes, bytearray, memoryview)):
        payload = value if _is_image(value) else _unwrap_bytes(value)
    else:
        payload = _unwrap_value(value)
    if len(payload) > max_bytes:
        raise PayloadTooLarge(f"{len(payload)} bytes; at most {max_bytes} are accepted")
    if not payload:
        raise EmptyPayload("the envelope holds no image")
    return payload


def _is_image(payload: Payload) -> bool:
    return bytes(payload[:8]).startswith(BINARY_MAGICS)


def _unwrap_bytes(body: Payload) -> Payload:
    """Bytes that are no image: JSON, base64 text, or neither (left for the decoder to refuse)."""
    text = bytes(body)
    if text[:1] in (b"{", b'"', b"["):
        if sum(map(text.count, JSON_STRUCTURE)) > MAX_JSON_VALUES:
            raise BadEnvelope(f"JSON of more than {MAX_JSON_VALUES} values")
        try:
            return _unwrap_value(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise BadEnvelope(
                "the body looks like JSON but cannot be parsed"
            ) from error
    try:
        return base64.b64decode(_without_line_ends(text), validate=True)
    except binascii.Error:
        return body


def _unwrap_value(value: object) -> Payload:
    """A parsed JSON value -> bytes."""
    if isinstance(value, Mapping):
        value = next((value[key] for key in JSON_KEYS if key in value), None)
    if not isinstance(value, str):
        raise BadEnvelope(
            f"JSON must be a base64 string or hold one under {' or '.join(JSON_KEYS)}"
        )
    try:
        return base64.b64decode(_without_line_ends(value.encode()), validate=True)
    except ValueError as error:
        raise BadEnvelope("the text is not base64") from error


def _without_line_ends(text: bytes) -> bytes:
    """The `base64` command and MIME wrap their lines at 76 characters."""
    return text.translate(None, WHITE_SPACE)
