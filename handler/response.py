"""Encodes predictions and errors as replies.

They are encoded once, to bytes: TorchServe passes bytes through, but would encode a dict with
indentation (ts/protocol/otf_message_handler.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import orjson

from offpath.handler.errors import ItemError

JSON_CONTENT_TYPE = "application/json"


@dataclass(frozen=True)
class EncodedReply:
    """An encoded reply to one item.

    Attributes:
        phrase: reason phrase, ASCII.
    """

    status: int
    phrase: str
    body: bytes


def encode_prediction(predictions: list[tuple[str, float]]) -> EncodedReply:
    """Encodes `{label: score, ...}`, best first, like TorchServe's image_classifier.

    The object is empty if no class reaches the threshold.
    """
    return encode_json(dict(predictions))


def encode_error(error: ItemError) -> EncodedReply:
    """Encodes `{"code", "type", "message"}`, as TorchServe's own errors, and the error's fields."""
    body = {"code": error.status, "type": error.type, "message": error.message, **error.fields}
    return EncodedReply(error.status, error.phrase, _encode(body))


def encode_json(value: object) -> EncodedReply:
    """Encodes any JSON value with status 200: predictions, explanations and descriptions."""
    return EncodedReply(200, "OK", _encode(value))


def _encode(value: object) -> bytes:
    """Encodes compact JSON in UTF-8, in 2 microseconds (the standard library takes 9)."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        # A label or a client's text has a lone surrogate, which only an escape can express.
        return json.dumps(value).encode()
