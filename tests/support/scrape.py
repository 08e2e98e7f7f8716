"""Reads a server's metrics as numbers and counts the lines of its logs."""

from __future__ import annotations

from collections import defaultdict

from offpath.profiling.load import prometheus
from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.support.eventually import eventually

# metric name -> label value (stage, bucket or error type) -> value
Metrics = dict[str, dict[str, float]]


def read_metrics(server: TorchServe, model: str) -> Metrics:
    """Reads a model's metrics; dimensions other than Stage, Le and Type are summed up."""
    metrics: Metrics = defaultdict(lambda: defaultdict(float))
    for line in prometheus.read_metrics(f"{server.metrics_url}/metrics").series:
        if line.labels.get("ModelName") == model:
            key = next(filter(None, map(line.labels.get, ("Stage", "Le", "Type"))), "")
            metrics[line.name][key] += line.value
    return metrics


def wait_for_items(server: TorchServe, model: str, items: float) -> Metrics:
    """Waits until the workers have reported this number of items."""

    def read() -> Metrics | None:
        metrics = read_metrics(server, model)
        return metrics if metrics["offpath_items_total"][""] >= items else None

    return eventually(read)


def count_log_lines(server: TorchServe) -> int:
    """Counts the lines of all log files."""
    return sum(len(path.read_bytes().splitlines()) for path in server.log_dir.iterdir())
