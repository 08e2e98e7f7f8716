"""Requests to the handler and replies from it: plain values."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

ID_FORM = re.compile("[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True)
class Request:
    """One image to classify.

    Attributes:
        body: an image file, or the .npy of a thin client.
        request_id: the prediction log's `event_id`; unique.
        headers: headers as the client sent them; `content-type` in lower case.
        arrived_s: time by `time.monotonic` of this host at which the body was read; 0 if unknown.
    """

    body: bytes
    request_id: str
    headers: Mapping[str, str] = field(default_factory=dict)
    arrived_s: float = 0.0


@dataclass(frozen=True)
class Reply:
    """The reply that TorchServe would have sent."""

    status: int
    headers: dict[str, str]
    body: bytes


def make_event_id(given: str) -> str:
    """Makes a unique event id that begins with the client's id, if that has a plain form.

    Clients repeat ids, and the prediction log keeps one record per id.
    """
    unique = uuid.uuid4()
    return f"{given}.{unique.hex[:12]}" if ID_FORM.fullmatch(given) else str(unique)
