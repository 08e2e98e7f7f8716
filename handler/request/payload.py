"""Takes the image's bytes out of a request's row, without copying TorchServe's data.

A row is TorchServe's dict of parameters: `data` for a form field, `body` for a raw body. Behind the
front door it is a request whose body may be a file (body_from_front_door.py).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping

from offpath.handler.errors import BadEnvelope, EmptyPayload, PayloadTooLarge, UnsupportedFormat
from offpath.handler.image.formats import MAGICS, Payload
from offpath.handler.request.body_from_front_door import Row, read_fields
from offpath.handler.request.npy import NPY_MAGIC

# Keys under which a JSON body may carry the base64 text.
JSON_KEYS = ("data", "body", "b64")
# First bytes of payloads that are used as they are; anything else may be a text envelope.
BINARY_MAGICS = (*MAGICS, NPY_MAGIC)
# An envelope holds one text. A body of `{},{},...` would become 11 million objects of 800 MB.
MAX_JSON_VALUES = 1000
JSON_STRUCTURE = (b",", b"{", b"[")
WHITE_SPACE = b" \t\n\r\v\f"


def read_payload(row: Row, max_bytes: int) -> Payload:
    """Takes the image's bytes out of a row.

    Accepts raw bytes, base64 text (like TorchServe's handler), and JSON that is a base64 string or
    an object with such a string under one of JSON_KEYS.

    Raises:
        EmptyPayload, PayloadTooLarge, BadEnvelope: the row holds no usable image.
        UnsupportedFormat: TorchServe has parsed an image as a form.
        BodyGone, BodyUnreadable: the front door's file cannot be read.
    """
    fields = read_fields(row)
    value = fields.get("data") or fields.get("body")
    if not value:
        # TorchServe parses what `curl --data-binary` and Python's urllib label a form.
        if not all(map(str.isprintable, fields)):
            raise UnsupportedFormat(
                "the image was sent as a form; send it with the header Content-Type: "
                "application/octet-stream"
            )
        raise EmptyPayload(
            "the request holds no image; send it as the body or as the form field `data`"
        )
    if isinstance(value, (bytes, bytearray, memoryview)):
        payload = value if _is_image(value) else _unwrap_bytes(value)
    else:
        payload = _unwrap_value(value)
    if len(payload) > max_bytes:
        raise PayloadTooLarge(
            f"the image has {len(payload)} bytes; at most {max_bytes} are accepted"
        )
    if not payload:
        raise EmptyPayload("the base64 text holds no image; it is empty")
    return payload


def _is_image(payload: Payload) -> bool:
    return bytes(payload[:8]).startswith(BINARY_MAGICS)


def _unwrap_bytes(body: Payload) -> Payload:
    """Unwraps bytes that are JSON or base64 text; others are returned for the decoder to refuse."""
    text = bytes(body)
    if text[:1] in (b"{", b'"', b"["):
        if sum(map(text.count, JSON_STRUCTURE)) > MAX_JSON_VALUES:
            raise BadEnvelope(f"the JSON has more than {MAX_JSON_VALUES} values; send one image")
        try:
            return _unwrap_value(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise BadEnvelope("the body looks like JSON but cannot be parsed") from error
    try:
        return base64.b64decode(_without_line_ends(text), validate=True)
    except binascii.Error:
        return body


def _unwrap_value(value: object) -> Payload:
    if isinstance(value, Mapping):
        value = next((value[key] for key in JSON_KEYS if key in value), None)
    if not isinstance(value, str):
        raise BadEnvelope(
            "the JSON must be a base64 string or hold one under " f"{' or '.join(JSON_KEYS)}"
        )
    try:
        return base64.b64decode(_without_line_ends(value.encode()), validate=True)
    except ValueError as error:
        raise BadEnvelope("the text in the JSON is not base64") from error


def _without_line_ends(text: bytes) -> bytes:
    """Removes the line ends that the `base64` command and MIME insert after 76 characters."""
    return text.translate(None, WHITE_SPACE)
