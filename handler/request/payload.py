"""Takes the image's bytes out of a request, without copying them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from offpath.handler.contract import Request
from offpath.handler.errors import BadEnvelope, EmptyPayload, PayloadTooLarge, UnsupportedFormat
from offpath.handler.image.formats import MAGICS, Payload
from offpath.handler.request.encodings import (
    JSON_KEYS,
    ORDER_MARK,
    WHITE_SPACE,
    decode_base64,
    has_more_values,
)
from offpath.handler.request.forms import CURE, find_lost_field, keep_all, parse_body
from offpath.handler.request.npy import NPY_MAGIC

# First bytes of payloads that are used as they are; anything else may be a text envelope.
BINARY_MAGICS = (*MAGICS, NPY_MAGIC)
# An envelope holds one text. A body of `{},{},...` would become 11 million objects of 800 MB.
MAX_JSON_VALUES = 1000
# The last two are the byte order marks of UTF-16.
JSON_BEGINS = (b"{", b'"', b"[", b"\xff\xfe", b"\xfe\xff")


def read_fields(request: Request) -> Mapping[str, Any]:
    """Returns the fields of a request's form, or its body as the field `body`.

    Raises:
        BadEnvelope: the form cannot be parsed, or the server has lost a field.
    """
    if isinstance(request.body, Mapping):
        lost = find_lost_field(request.body, request.headers)
        if lost is not None:
            raise lost
        return request.body
    return parse_body(request.body, request.headers.get("content-type", ""))


def read_payload(fields: Mapping[str, Any], max_bytes: int) -> Payload:
    """Takes the image's bytes out of a request's fields.

    Accepts raw bytes, base64 text (like TorchServe's handler) or a data URL, and JSON that is such
    a string or an object with one under one of JSON_KEYS.

    Raises:
        EmptyPayload, PayloadTooLarge, BadEnvelope: the fields hold no usable image.
        UnsupportedFormat: TorchServe has parsed an image as a form.
    """
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
    if text[:99].lstrip(ORDER_MARK + WHITE_SPACE).startswith(JSON_BEGINS):
        if has_more_values(text, MAX_JSON_VALUES):
            raise BadEnvelope(f"the JSON has more than {MAX_JSON_VALUES} values; send one image")
        try:
            return _unwrap_value(json.loads(text, object_pairs_hook=keep_all))
        except (ValueError, RecursionError) as error:
            raise BadEnvelope("the body looks like JSON but cannot be parsed") from error
    try:
        return decode_base64(text)
    except ValueError:
        return body


def _unwrap_value(value: object) -> Payload:
    values = [value]
    if isinstance(value, Mapping):
        values = [value[key] for key in JSON_KEYS if key in value]
    if len(values) != 1 or not isinstance(values[0], str):
        keys = " or ".join(JSON_KEYS)
        raise BadEnvelope(f"the JSON must be a base64 string or hold one under {keys}; {CURE}")
    try:
        return decode_base64(values[0].encode())
    except ValueError as error:
        raise BadEnvelope("the text in the JSON is not base64") from error
