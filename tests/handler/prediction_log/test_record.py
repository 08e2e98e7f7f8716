"""Records as JSON Lines."""

from __future__ import annotations

import json
import math

import pytest

from offpath.handler.prediction_log.record import FIELDS, encode_records
from tests.handler.prediction_log.conftest import make_record


def decode(data: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_becomes_null(value: float) -> None:
    record = make_record(predictions=[("a", value)], stage_ms={"decode": value})

    row = decode(encode_records([record], FIELDS))[0]

    assert row["predictions"] == [{"label": "a", "probability": None}]
    assert row["stage_ms"] == {"decode": None}


def test_only_the_chosen_fields_are_written() -> None:
    data = encode_records([make_record("e1"), make_record("e2")], ("event_id", "status"))

    assert decode(data) == [
        {"event_id": "e1", "status": 200},
        {"event_id": "e2", "status": 200},
    ]
