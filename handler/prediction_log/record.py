"""What is remembered of an answered request: one JSON line, never pixels.

Standard library only: encoding a record costs about ten microseconds; a faster JSON library would
save some of them and be one more dependency of every worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from json.encoder import encode_basestring_ascii

STAGE_MS = "stage_ms"


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


def format_inference_time(now: datetime | None = None) -> str:
    """RFC 3339 in UTC with milliseconds, for instance 2026-11-21T03:51:42.123Z."""
    moment = now or datetime.now(timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def encode_records(records: Iterable[Record], names: Sequence[str]) -> bytes:
    """The records as JSON Lines with the fields `names`, ASCII only, escaped as JSON asks."""
    encoders = [
        _StageEncoder() if name == STAGE_MS else _ENCODERS[name] for name in names
    ]
    lines = [
        "{" + ",".join([e(record) for e in encoders]) + "}\n" for record in records
    ]
    return "".join(lines).encode("ascii")


def _number(value: float) -> str:
    """A JSON number of six digits; null for NaN and infinity, which are no JSON."""
    text = "%.6g" % value
    return "null" if "n" in text else text


def _text(value: str | None) -> str:
    # ASCII with escapes: a user id may hold anything, a lone surrogate included.
    return "null" if value is None else encode_basestring_ascii(value)


def _predictions(record: Record) -> str:
    rows = [
        f'{{"label":{_text(label)},"probability":{_number(probability)}}}'
        for label, probability in record.predictions
    ]
    return f'"predictions":[{",".join(rows)}]'


class _StageEncoder:
    """Encodes `stage_ms` once for the records of a batch, which share one dict."""

    def __init__(self) -> None:
        self._stage_ms: dict[str, float] | None = None
        self._text = ""

    def __call__(self, record: Record) -> str:
        if record.stage_ms is not self._stage_ms:
            self._stage_ms = record.stage_ms
            stages = [
                f"{_text(name)}:{_number(ms)}" for name, ms in record.stage_ms.items()
            ]
            self._text = f'"stage_ms":{{{",".join(stages)}}}'
        return self._text


# One encoder a field: three times as fast as json.dumps of a dict a record.
_ENCODERS: dict[str, Callable[[Record], str]] = {
    "event_id": lambda record: f'"event_id":{_text(record.event_id)}',
    "inference_time": lambda record: f'"inference_time":{_text(record.inference_time)}',
    "model": lambda record: f'"model":{_text(record.model)}',
    "version": lambda record: f'"version":{_text(record.version)}',
    "user_id": lambda record: f'"user_id":{_text(record.user_id)}',
    "payload_bytes": lambda record: f'"payload_bytes":{int(record.payload_bytes)}',
    "payload_hash": lambda record: f'"payload_hash":{_text(record.payload_hash)}',
    "predictions": _predictions,
    "status": lambda record: f'"status":{int(record.status)}',
    "error": lambda record: f'"error":{_text(record.error)}',
    STAGE_MS: _StageEncoder(),
    "batch_size": lambda record: f'"batch_size":{int(record.batch_size)}',
}
FIELDS: tuple[str, ...] = tuple(_ENCODERS)
