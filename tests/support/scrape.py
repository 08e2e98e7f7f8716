"""Reads a server's metrics as numbers and counts the lines of its logs."""

from __future__ import annotations

import re
from collections import defaultdict

import httpx

from offpath.serving.torchserve.server import TorchServe
from tests.support.eventually import eventually

LINE = re.compile(r"^(\w+)\{(.*)\} (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')

# metric name -> label value (stage, bucket or error type) -> value
Metrics = dict[str, dict[str, float]]


def read_metrics(server: TorchServe, model: str) -> Metrics:
    """Reads a model's metrics; dimensions other than Stage, Le and Type are summed up."""
    metrics: Metrics = defaultdict(lambda: defaultdict(float))
    for line in httpx.get(f"{server.metrics_url}/metrics").text.splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        labels = dict(LABEL.findall(match[2]))
        if labels.get("ModelName") == model:
            key = labels.get("Stage") or labels.get("Le") or labels.get("Type") or ""
            metrics[match[1]][key] += float(match[3])
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
