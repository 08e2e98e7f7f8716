"""Pictures decoded by a decode tier, and classified by the model's process."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from ts.context import Context, RequestProcessor

from offpath.handler.config import HandlerConfig
from offpath.handler.decode_tier import DecodeTier
from offpath.handler.prediction_log.log_settings import PredictionLogSettings
from offpath.handler.response import Reply
from tests.handler.conftest import MakePipeline
from tests.support.photographs import encode, find_photograph

JPEG = encode(find_photograph("coffee").rgb, "JPEG")


class Counted:
    """A metrics cache that sums values."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}

    def get_metric(self, name, kind=None):
        return Series(self.sums, name)


class Series:
    def __init__(self, sums, name) -> None:
        self.sums, self.name = sums, name

    def add_or_update(self, value, labels) -> None:
        key = " ".join([self.name, *labels[1:]])
        self.sums[key] = self.sums.get(key, 0) + value


def make_context(idx: str, **headers: str) -> Context:
    context = Context("cats", "", {}, 4, None, "0.12")
    context.request_processor = [RequestProcessor(headers)]
    context.request_ids = {0: idx}
    return context


@pytest.fixture
def tier(tmp_path: Path):
    log = PredictionLogSettings.from_mapping(
        {"uri": f"file://{tmp_path / 'log'}", "spool_dir": str(tmp_path / "spool")}, {}
    )
    config = replace(HandlerConfig.from_mapping(None, {}), prediction_log=log)
    metrics = Counted()
    tier = DecodeTier(config, "cats", "1.0", metrics)
    yield tier, metrics
    tier.close()


def read_log(folder: Path) -> list[dict]:
    return [
        json.loads(line)
        for path in folder.glob("log/dt=*/hour=*/*.jsonl.gz")
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]


def test_refusal_is_answered_recorded_and_counted_by_the_decode_tier_only(
    tier, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    decode_tier, metrics = tier
    decode_tier.decode({"body": JPEG}, make_context("good"))
    refused, _ = decode_tier.decode({"body": b"no picture"}, make_context("bad"))
    assert isinstance(refused, Reply)
    assert refused == make_pipeline().classify([{"body": b"no picture"}])[0]
    decode_tier.close()
    (record,) = read_log(tmp_path)
    assert (record["event_id"], record["status"]) == ("bad", 415)
    assert metrics.sums["offpath_items_total"] == 1
    assert metrics.sums["offpath_errors_total UnsupportedFormat"] == 1
    assert metrics.sums["offpath_stage_seconds_total decode"] > 0


def test_a_late_request_is_refused_undecoded(tier) -> None:
    decode_tier, metrics = tier
    context = make_context("late", **{"x-request-timeout-ms": "0"})
    refused, _ = decode_tier.decode({"body": JPEG}, context)
    assert isinstance(refused, Reply) and refused.status == 504
    decode_tier.close()
    assert metrics.sums["offpath_errors_total DeadlineExceeded"] == 1
    assert metrics.sums.get("offpath_stage_seconds_total decode", 0) == 0


def test_input_of_another_size_is_refused_and_its_neighbour_answered(
    tier, make_pipeline: MakePipeline
) -> None:
    decoded, _ = tier[0].decode({"body": JPEG}, make_context("a"))
    other = replace(decoded, pixels=decoded.pixels[:100])
    bad, good = make_pipeline().classify([{"body": other}, {"body": decoded}])
    assert (bad.status, good.status) == (422, 200)
