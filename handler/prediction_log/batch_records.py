"""Makes the prediction log's records from a finished batch; they never contain pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import xxhash

from offpath.handler.contract import Item
from offpath.handler.image.formats import Payload
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.record import Record, format_inference_time
from offpath.handler.stages import BatchTimings

# A header of 8 kB becomes 48 kB of escapes in the spool, where it displaces other records.
MAX_USER_ID = 256


def make_records(
    items: Sequence[Item],
    settings: PredictionLogSettings,
    model: str,
    version: str,
    timings: BatchTimings,
    batch_size: int,
) -> list[Record]:
    """Makes one record per item, in order.

    The payload is only hashed if `settings` asks for that field.
    """
    inference_time = format_inference_time()
    stage_ms = format_stages(timings)
    return [
        Record(
            event_id=item.request.id,
            inference_time=inference_time,
            model=model,
            version=version,
            user_id=item.request.headers.get(settings.user_id_header, "")[:MAX_USER_ID] or None,
            payload_bytes=len(item.payload or b""),
            payload_hash=hash_payload(item.payload, settings),
            predictions=item.predictions if item.error is None else (),
            status=item.status,
            error=item.error.type if item.error else None,
            stage_ms=stage_ms,
            batch_size=batch_size,
            extra=item.extra if item.error is None else None,
        )
        for item in items
    ]


def format_stages(timings: BatchTimings) -> dict[str, float]:
    return {stage.value: seconds * 1e3 for stage, seconds in timings.seconds.items()}


def hash_payload(payload: Payload | None, settings: PredictionLogSettings) -> str | None:
    """Hashes a payload by the settings' algorithm; None if the log has no such field."""
    if payload is None or "payload_hash" not in settings.fields:
        return None
    if settings.payload_hash == "sha256":
        return "sha256:" + hashlib.sha256(payload).hexdigest()[:16]
    return "xxh3_64:" + xxhash.xxh3_64_hexdigest(payload)
