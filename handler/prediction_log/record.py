"""The record of an answered request: one JSON line, without pixels."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

import orjson


@dataclass(slots=True)
class Record:
    """One answered request.

    Attributes:
        event_id: TorchServe's request id, the reply header `x-request-id`.
        inference_time: RFC 3339 UTC, the same for a whole batch (`format_inference_time`).
        model: Name the model is registered under.
        user_id: Value of the request's user-id header.
        payload_hash: Algorithm and 16 hexadecimal digits, `xxh3_64:...` or `sha256:...`.
        predictions: (label, probability), best first; empty for an error.
        error: Type of the error, None for a prediction.
        stage_ms: Milliseconds by stage, for the batch this request was in.
        extra: Fields of a custom handler; left out of the line if empty.
    """

    event_id: str
    inference_time: str
    model: str
    version: str
    user_id: str | None = None
    payload_bytes: int = 0
    payload_hash: str | None = None
    predictions: Sequence[tuple[str, float]] = ()
    status: int = 200
    error: str | None = None
    stage_ms: dict[str, float] = field(default_factory=dict)
    batch_size: int = 1
    extra: Mapping[str, Any] | None = None


FIELDS: tuple[str, ...] = tuple(one.name for one in fields(Record))


def format_inference_time(now: datetime | None = None) -> str:
    """Formats RFC 3339 in UTC with milliseconds, for instance 2026-11-21T03:51:42.123Z."""
    moment = now or datetime.now(timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def encode_records(records: Iterable[Record], names: Sequence[str]) -> bytes:
    """Encodes records as JSON Lines in ASCII, with the fields `names`.

    The records of a batch share one dict of stages, which is rounded once.
    """
    stage_ms: dict[str, float] | None = None
    rounded: dict[str, float | None] = {}
    lines = []
    for record in records:
        if record.stage_ms is not stage_ms:
            stage_ms = record.stage_ms
            rounded = {name: _round(ms) for name, ms in stage_ms.items()}
        lines.append(_encode_line(record, names, rounded))
    return b"".join(lines)


def _encode_line(record: Record, names: Sequence[str], stage_ms: dict[str, float | None]) -> bytes:
    row: dict[str, Any] = {name: getattr(record, name) for name in names}
    if not row.get("extra", True):
        del row["extra"]
    if "predictions" in row:
        row["predictions"] = [
            {"label": label, "probability": _round(probability)}
            for label, probability in record.predictions
        ]
    if "stage_ms" in row:
        row["stage_ms"] = stage_ms
    try:
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
        if line.isascii():
            return line
    except orjson.JSONEncodeError:
        pass  # the text has a lone surrogate
    # Non-ASCII is escaped, because some readers end a line at characters such as U+2028.
    return json.dumps(row).encode() + b"\n"


def _round(value: float) -> float | None:
    """Rounds to six digits, which saves a fifth of the bytes; None for NaN and infinity."""
    rounded = float(f"{value:.6g}")
    return rounded if math.isfinite(rounded) else None
