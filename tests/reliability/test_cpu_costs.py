"""CPU time that histograms, deadlines and tracing cost a worker, as a share of its work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.deadline import Deadlines
from offpath.handler.latency import Histograms
from offpath.handler.pipeline import Pipeline
from offpath.handler.stages import Stage
from tests.conftest import build
from tests.handler.conftest import make_runner
from tests.support.otlp_collector import run_collector
from tests.support.photographs import encode, find_photograph
from tests.support.traced_batches import measure

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(600)]
# As nginx passes them on.
HEADERS = {
    **{f"Header-{number}": "value" for number in range(8)},
    "X-Offpath-Arrived": "1800000000.000",
    "x-request-timeout-ms": "250",
}


def measure_cpu_s(call: Callable[[], object], times: int) -> float:
    """Returns the CPU seconds of one call, the least of five runs."""
    runs = []
    for _ in range(5):
        begin_s = time.process_time()
        for _ in range(times):
            call()
        runs.append((time.process_time() - begin_s) / times)
    return min(runs)


def test_histograms_and_deadlines_cost_less_than_a_percent_of_a_small_request() -> None:
    """Compares with a batch of one 500 x 333 JPEG for the near-free model, without a server."""
    torch.set_num_threads(1)
    config = HandlerConfig()
    pipeline = Pipeline(config, make_runner(config), {}, threads=1)
    deadlines, histograms = Deadlines(0), Histograms()
    photograph = find_photograph("coffee").rgb.resize((500, 333))
    rows = [{"body": encode(photograph, "JPEG", quality=90)}]

    def judge_and_count() -> None:
        deadlines.refuse_late(rows, [HEADERS])
        deadlines.learn(0.01)
        for name in (*Stage, "other", "total", "2xx"):
            histograms.add(name, 0.004)

    added_s = measure_cpu_s(judge_and_count, 5000)
    request_s = measure_cpu_s(lambda: pipeline.classify(rows), 200)
    print(f"{added_s * 1e6:.1f} us of {request_s * 1e6:.0f}: {added_s / request_s:.2%}")
    assert added_s < 0.01 * request_s


def test_one_request_in_a_hundred_traced_costs_less_than_five_percent(tmp_path: Path) -> None:
    """Compares the CPU of the whole process with and without tracing."""
    mar = build(tmp_path, "near-free", "near-free")
    with run_collector() as collector:
        rounds = measure(mar, collector.url, 40)
    off, on, all_traced = map(statistics.median, rounds)
    print(f"CPU ms per batch of 8: {off:.3f} off, {on:.3f} at 1 %, {all_traced:.3f} all traced")
    assert on < 1.05 * off
