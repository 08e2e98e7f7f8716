from __future__ import annotations

import logging
import re
import threading
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

from offpath.handler import metrics as metrics_module
from offpath.handler.metrics import DIMENSIONS, MetricsEmitter
from offpath.handler.prediction_log.prediction_log import LogCounters
from offpath.handler.stages import BatchTimings, Stage

Totals = dict[tuple[str, str], float]
LINE = re.compile(r"\[METRICS\](\w+)\.\w+:([\d.e+-]+)\|#(.*?)\|#type:(\w+)\|")
METRICS_YAML = Path(metrics_module.__file__).parent.parent / "serving/conf/metrics.yaml"
ONE_SECOND = BatchTimings(dict.fromkeys(Stage, 0.125), 1.0)


def make_cache(file: Path) -> MetricsCacheYamlImpl:
    cache = MetricsCacheYamlImpl(str(file))
    cache.initialize_cache()
    return cache


@pytest.fixture
def emitter(caplog: pytest.LogCaptureFixture) -> MetricsEmitter:
    caplog.set_level(logging.INFO, logger="ts.metrics.caching_metric")
    return MetricsEmitter(make_cache(METRICS_YAML), "cats", 3600)


def read_lines(caplog: pytest.LogCaptureFixture) -> Totals:
    """Adds up the lines so far, as TorchServe's Java side does, and forgets them."""
    totals: Totals = defaultdict(float)
    for record in caplog.records:
        found = LINE.match(record.getMessage())
        assert found, record.getMessage()
        name, value, dimensions, _ = found.groups()
        totals[name, dimensions.removeprefix("ModelName:cats").lstrip(",")] += float(value)
    caplog.clear()
    return totals


def test_times_are_counted_in_cumulative_buckets(
    emitter: MetricsEmitter, caplog: pytest.LogCaptureFixture
) -> None:
    emitter.count_batch(ONE_SECOND, 1, [])
    emitter.count_requests(200, 0.25)
    emitter.count_requests(204, 0.2501, 2)
    emitter.count_requests(504, 70)
    emitter.write(has_buckets=False)
    assert not [name for name, _ in read_lines(caplog) if "seconds_bucket" in name]
    emitter.write()
    totals = read_lines(caplog)
    times = {
        labels: number
        for (name, labels), number in totals.items()
        if name == "offpath_request_seconds_bucket_total"
    }
    assert times.pop("status:5xx,le:+Inf") == 1
    assert times.pop("status:2xx,le:0.25") == 1
    assert times == {
        f"status:2xx,le:{le}": 3 for le in ("0.5", "1", "2.5", "5", "10", "30", "60", "+Inf")
    }
    stages = "offpath_stage_seconds_bucket_total"
    assert (stages, "Stage:decode,le:0.1") not in totals
    assert totals[stages, "Stage:decode,le:0.25"] == 1
    assert totals[stages, "Stage:total,le:1"] == 1
    emitter.write()
    assert read_lines(caplog) == {}


def test_nothing_is_lost_or_doubled_between_threads(
    emitter: MetricsEmitter, caplog: pytest.LogCaptureFixture
) -> None:
    def count() -> None:
        for _ in range(500):
            emitter.count_batch(ONE_SECOND, 3, ["BadTensor"])

    threads = [threading.Thread(target=count) for _ in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        emitter.write()
    for thread in threads:
        thread.join()
    emitter.write()
    totals = read_lines(caplog)
    assert totals["offpath_batches_total", ""] == 3000
    assert totals["offpath_items_total", ""] == 9000
    assert totals["offpath_errors_total", "Type:BadTensor"] == 3000
    assert totals["offpath_stage_seconds_total", "Stage:decode"] == pytest.approx(375)


def test_prediction_logs_counters_are_differences_and_its_gauges_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="ts.metrics.caching_metric")
    states = iter(
        [
            LogCounters(appended=5, shipped=2, spool_bytes=100),
            LogCounters(appended=9, shipped=2, dropped=1, spool_bytes=100),
            LogCounters(appended=9, shipped=9, dropped=1, spool_bytes=0),
        ]
    )
    emitter = MetricsEmitter(make_cache(METRICS_YAML), "cats", 3600, lambda: next(states))
    expected = [
        # The age is written at first in any case, over the age that a dead worker has left.
        {
            "appended_total": 5,
            "shipped_total": 2,
            "spool_bytes": 100,
            "oldest_unshipped_seconds": 0,
        },
        {"appended_total": 4, "dropped_total": 1},
        {"shipped_total": 7, "spool_bytes": 0},
    ]
    for values in expected:
        emitter.write()
        assert read_lines(caplog) == {
            (f"offpath_log_{name}", ""): value for name, value in values.items()
        }


def test_every_metric_is_declared_for_torchserve_with_its_dimensions() -> None:
    # TorchServe drops what its metrics.yaml does not name.
    declared = {
        metric["name"]: metric["dimensions"]
        for kind in yaml.safe_load(METRICS_YAML.read_text())["model_metrics"].values()
        for metric in kind
    }
    names = [*DIMENSIONS, "offpath_batches_total", "offpath_items_total"]
    names += [f"offpath_log_{name}_total" for name in metrics_module.LOG_COUNTERS]
    names += metrics_module.LOG_GAUGES.values()
    for name in names:
        assert declared[name] == DIMENSIONS.get(name, ["ModelName"])
