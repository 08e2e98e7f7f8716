from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from offpath.handler import metrics as metrics_module
from offpath.handler.metrics import LABELS, Metrics
from offpath.handler.prediction_log.prediction_log import LogCounters

METRICS_YAML = Path(metrics_module.__file__).parent.parent / "serving/conf/metrics.yaml"


def test_prediction_logs_counters_are_differences_and_its_gauges_values() -> None:
    states = iter(
        [
            LogCounters(appended=5, shipped=2, spool_bytes=100),
            LogCounters(appended=9, shipped=2, dropped=1, spool_bytes=100),
            LogCounters(appended=9, shipped=9, dropped=1, spool_bytes=0),
        ]
    )
    published: dict[str, float] = {}

    def publish(name: str, value: float, _: bool, labels: Mapping[str, str]) -> None:
        assert labels == {"ModelName": "cats"}
        published[name] = value

    metrics = Metrics(publish, "cats", 3600, lambda: next(states))
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
        published.clear()
        metrics.write()
        assert published == {f"offpath_log_{name}": value for name, value in values.items()}


def test_every_metric_is_declared_for_torchserve_with_its_labels() -> None:
    # TorchServe drops what its metrics.yaml does not name.
    declared = {
        metric["name"]: metric["dimensions"]
        for kind in yaml.safe_load(METRICS_YAML.read_text())["model_metrics"].values()
        for metric in kind
    }
    names = [*LABELS, "offpath_batches_total", "offpath_items_total"]
    names += [f"offpath_log_{name}_total" for name in metrics_module.LOG_COUNTERS]
    names += metrics_module.LOG_GAUGES.values()
    for name in names:
        assert declared[name] == ["ModelName", *LABELS.get(name, ())]
