"""The account of a client's latency: what each clock says, and that the lines add up."""

from __future__ import annotations

import pytest
from prometheus_client.samples import Sample

from offpath.profiling.experiments.server_profile import (
    CLIENT,
    HANDLER_OTHER,
    LEFT,
    PROTOCOL,
    QUEUE,
    WORKER,
    Counters,
    make_account,
    read_counters,
)
from offpath.profiling.load.prometheus import Snapshot

REQUESTS = ("ts_inference_requests_total", "model_name=m")
JAVA = ("ts_inference_latency_microseconds_total", "model_name=m")
STAGES = "offpath_stage_seconds_total"
# 800 requests in 100 batches of 8; per request: 40 ms by Java, 10 of them in the queue;
# per batch: 24 ms in the stages and 1 in `other`.
OURS = {
    REQUESTS: 800,
    JAVA: 800 * 40e3,
    ("ts_queue_latency_microseconds_total", "model_name=m"): 800 * 10e3,
    ("offpath_batches_total", "ModelName=m"): 100,
    ("offpath_items_total", "ModelName=m"): 800,
    (STAGES, "ModelName=m,Stage=inference"): 0.4,
    (STAGES, "ModelName=m,Stage=decode"): 2.0,
    (STAGES, "ModelName=m,Stage=other"): 0.1,
}
PARTS = {
    CLIENT: 50 - 40,
    QUEUE: 10,
    PROTOCOL: 40 - 10 - 25,
    "decode": 20,
    "inference": 4,
    HANDLER_OTHER: 1,
    LEFT: 0,
}


NOT_OURS = {key: n for key, n in OURS.items() if not key[0].startswith("offpath_")}
OTHERS = {(name, labels.replace("=m", "=other")): 3 * n for (name, labels), n in OURS.items()}


def snapshot(counters: dict, scale: float = 1.0) -> Snapshot:
    rows = []
    for (name, labels), value in counters.items():
        pairs = dict(pair.split("=") for pair in labels.split(","))
        rows.append(Sample(name, pairs, value * scale))
    return Snapshot(0.0, tuple(rows))


def count(counters: dict) -> Counters:
    # The counters were not at zero when the window began.
    return read_counters(snapshot(counters, 0.5), snapshot(counters, 1.5), "m")


def account(counters: dict, mean_ms: float = 50.0) -> dict[str, float]:
    return make_account(mean_ms, count(counters))


@pytest.mark.parametrize(
    ("counters", "parts"),
    [
        pytest.param(OURS, PARTS, id="ours"),
        pytest.param(OURS | OTHERS, PARTS, id="beside-other-models"),
        pytest.param(NOT_OURS, {CLIENT: 10, QUEUE: 10, WORKER: 30, LEFT: 0}, id="another-handler"),
    ],
)
def test_each_part_is_a_stage_or_the_difference_of_two_clocks(counters, parts):
    found = {name: ms for name, ms in account(counters).items() if name in parts}
    assert found == pytest.approx(parts, abs=1e-9)
    # The order of the path.
    assert list(found) == list(parts)
