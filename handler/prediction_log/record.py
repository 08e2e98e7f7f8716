"""What is remembered of an answered request: one JSON line, never pixels."""

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
        version: Version of the model.
        user_id: What the client sent in the user-id header.
        payload_bytes: Size of the request's payload.
        payload_hash: Algorithm and 16 hexadecimal digits, `xxh3_64:...` or `sha256:...`.
        predictions: (label, probability), best first; empty for an error.
        status: HTTP status of the reply.
        error: Type of the error, None for a prediction.
        stage_ms: Milliseconds by stage, of the batch this request was in.
        batch_size: Requests in that batch.
        extra: What a handler of one's own adds; left out of the line where there is nothing.
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
    """RFC 3339 in UTC with milliseconds, for instance 2026-11-21T03:51:42.123Z."""
    moment = now or datetime.now(timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def encode_records(records: Iterable[Record], names: Sequence[str]) -> bytes:
    """The records as JSON Lines with the fields `names`, in ASCII.

    The records of a batch share one dict of stages, so theirs are rounded once.
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


def _encode_line(
    record: Record, names: Sequence[str], stage_ms: dict[str, float | None]
) -> bytes:
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
        pass  # a lone surrogate
    # A client's text must not hold what some reader takes for a line's end, as U+2028.
    return json.dumps(row).encode() + b"\n"


def _round(value: float) -> float | None:
    """Six digits, a fifth less to ship; None for what JSON has no number for."""
    rounded = float(f"{value:.6g}")
    return rounded if math.isfinite(rounded) else None
