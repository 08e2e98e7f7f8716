"""Makes the prediction log's records from a finished batch; they never contain pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

import xxhash

from offpath.handler.image.formats import Payload
from offpath.handler.pipeline import Batch
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.record import Record, format_inference_time
from offpath.handler.process.warmup import is_warm_up
from offpath.handler.stages import BatchTimings

# A header of 8 kB becomes 48 kB of escapes in the spool, where it displaces other records.
MAX_USER_ID = 256


class RecordContext(Protocol):
    """Ids and headers of a batch's requests, by their index, as in TorchServe's Context."""

    model_name: str

    def get_request_id(self, idx: int) -> str | None:
        """Returns the id that the reply carries too."""

    def get_all_request_header(self, idx: int) -> Mapping[str, str]:
        """Returns the headers, with names as the client spelled them."""


def make_records(
    batch: Batch,
    context: RecordContext,
    settings: PredictionLogSettings,
    version: str,
    timings: BatchTimings,
    warm_up_key: str | None = None,
) -> list[Record]:
    """Makes one record per item of the batch, in order.

    The payload is only hashed if `settings` asks for that field. Requests that carry `warm_up_key`
    are left out, and so are requests for a description of the model.
    """
    inference_time = format_inference_time()
    stage_ms = format_stages(timings)
    return [
        Record(
            event_id=context.get_request_id(idx) or "",
            inference_time=inference_time,
            model=context.model_name,
            version=version,
            user_id=_find_header(context, idx, settings.user_id_header),
            payload_bytes=len(item.payload or b""),
            payload_hash=hash_payload(item.payload, settings),
            predictions=item.predictions if item.error is None else (),
            status=item.error.status if item.error else 200,
            error=item.error.type if item.error else None,
            stage_ms=stage_ms,
            batch_size=len(batch.items),
            extra=item.extra if item.error is None else None,
        )
        for idx, item in enumerate(batch.items)
        if (item.payload is not None or item.error is not None)
        and not is_warm_up(context.get_all_request_header(idx), warm_up_key)
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


def _find_header(context: RecordContext, idx: int, name: str) -> str | None:
    """Finds a header by its lower-case name, because TorchServe keeps the client's spelling."""
    for key, value in context.get_all_request_header(idx).items():
        if key.lower() == name:
            return str(value)[:MAX_USER_ID]
    return None
