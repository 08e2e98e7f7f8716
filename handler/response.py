"""Predictions and errors -> encoded replies. Encoded once, here, to bytes: TorchServe passes bytes
through, where it would indent a dict (ts/protocol/otf_message_handler.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from handler.errors import ItemError

JSON_CONTENT_TYPE = "application/json"


@dataclass(frozen=True)
class Reply:
    """One item's answer.

    Attributes:
        status: HTTP status.
        phrase: reason phrase, ASCII.
        body: encoded JSON.
    """

    status: int
    phrase: str
    body: bytes


def encode_prediction(predictions: list[tuple[str, float]]) -> Reply:
    """`{label: probability, ...}`, best first: the stock image_classifier's body, not indented."""
    return Reply(200, "OK", json.dumps(dict(predictions)).encode())


def encode_error(error: ItemError) -> Reply:
    """`{"code", "type", "message"}`, TorchServe's own error body."""
    body = {"code": error.status, "type": error.type, "message": error.message}
    return Reply(error.status, error.phrase, json.dumps(body).encode())


def encode_json(value: object) -> Reply:
    """Any JSON value with status 200: explanations and descriptions."""
    return Reply(200, "OK", json.dumps(value).encode())
