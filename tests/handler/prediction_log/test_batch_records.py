from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from offpath.handler.contract import Request
from offpath.handler.prediction_log.batch_records import make_records
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.prediction_log.record import FIELDS, Record, encode_records
from offpath.handler.stages import BatchTimings, Stage
from tests.guarantees import guarantee
from tests.handler.conftest import MakePipeline
from tests.handler.prediction_log.conftest import make_record
from tests.support.photographs import encode, find_photograph

JPEG = bytearray(encode(find_photograph("coffee").rgb, "JPEG"))
PAGE = Path(__file__).parents[3] / "docs" / "prediction-log.md"
TIMINGS = BatchTimings({Stage.DECODE: 0.0112}, 0.02)


def record(
    make_pipeline: MakePipeline,
    bodies: list[Any],
    headers: dict[str, str] | None = None,
    **settings: object,
) -> list[Record]:
    pipeline = make_pipeline()
    requests = [Request(body, f"id-{idx}", headers or {}) for idx, body in enumerate(bodies)]
    items = pipeline.predict(pipeline.read_batch(requests)).items
    checked = PredictionLogSettings.from_mapping(settings, {})
    return make_records(items, checked, "cats", "1.0", TIMINGS, len(items))


def test_every_item_is_recorded_with_its_own_answer(make_pipeline: MakePipeline) -> None:
    good, bad, empty = record(make_pipeline, [JPEG, b"junk.", b""])
    assert [one.event_id for one in (good, bad, empty)] == ["id-0", "id-1", "id-2"]
    assert [one.status for one in (good, bad, empty)] == [200, 415, 400]
    assert [one.error for one in (good, bad, empty)] == [None, "UnsupportedFormat", "EmptyPayload"]
    assert [one.payload_bytes for one in (good, bad, empty)] == [len(JPEG), 5, 0]
    assert [len(one.predictions) for one in (good, bad, empty)] == [5, 0, 0]
    assert good.user_id is None
    for one in (good, bad, empty):
        assert (one.model, one.version, one.batch_size) == ("cats", "1.0", 3)
        assert one.stage_ms == {"decode": pytest.approx(11.2)}
        assert one.inference_time.endswith("Z")


@guarantee(
    "Poisoned spools, segments and objects",
    "handler/prediction_log/batch_records.py",
    "[:MAX_USER_ID] or None",
    " or None",
)
def test_a_long_user_id_takes_no_more_of_the_spool_than_a_record_does(
    make_pipeline: MakePipeline,
) -> None:
    headers = {"content-type": "image/jpeg", "x-user-id": "\x1b\u2028" * 4000}
    (good,) = record(make_pipeline, [JPEG], headers)
    line = encode_records([good], FIELDS)
    assert len(line) < 3000 and line.isascii() and b"\x1b" not in line


def test_payload_hash_is_the_hash_of_the_image(make_pipeline: MakePipeline) -> None:
    good, empty = record(make_pipeline, [JPEG, b""], payload_hash="sha256")
    assert good.payload_hash == "sha256:" + hashlib.sha256(JPEG).hexdigest()[:16]
    assert empty.payload_hash is None
    (good,) = record(make_pipeline, [JPEG], fields=["status"])
    assert good.payload_hash is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_becomes_null(value: float) -> None:
    record = make_record(predictions=[("a", value)], stage_ms={"decode": value})

    row = json.loads(encode_records([record], FIELDS))

    assert row["predictions"] == [{"label": "a", "probability": None}]
    assert row["stage_ms"] == {"decode": None}


def test_a_record_is_a_line_like_the_documented_one() -> None:
    page = PAGE.read_text("utf-8").splitlines()
    documented = json.loads(next(line for line in page if line.startswith('{"event_id":')))
    record = make_record(predictions=[("espresso", 0.9612349)])

    line = encode_records([record], FIELDS)

    assert line.endswith(b"\n") and list(json.loads(line)) == list(documented)
    assert json.loads(line)["predictions"] == documented["predictions"]
