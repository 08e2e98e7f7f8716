"""Reads a server's metrics as numbers and counts the lines of its logs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import httpx

from offpath.serving.torchserve.torchserve_server import TorchServe
from tests.support.eventually import eventually

# metric name -> label value (stage, bucket or error type) -> value
Metrics = dict[str, dict[str, float]]
LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)", re.MULTILINE)
COUNT = r'^offpath_door_responses_total{status="(.*)",type="(.*)"} ([1-9].*)$'
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_lines(url: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Reads a page of metrics: each line's name, labels and value."""
    page = httpx.get(url, timeout=30, trust_env=False)
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/plain")
    for name, labels, value in LINE.findall(page.text):
        yield name, dict(LABEL.findall(labels)), float(value)


def sum_metric(url: str, name: str, **wanted: str) -> float:
    """Returns the sum of a metric's lines with these labels; 0 without any."""
    lines = read_lines(url)
    return sum(value for one, has, value in lines if one == name and wanted.items() <= has.items())


def read_metrics(server: TorchServe, model: str) -> Metrics:
    """Reads a model's metrics; dimensions other than Stage, Le and Type are summed up."""
    metrics: Metrics = defaultdict(lambda: defaultdict(float))
    for name, labels, value in read_lines(f"{server.metrics_url}/metrics"):
        if labels.get("ModelName") == model:
            key = next(filter(None, map(labels.get, ("Stage", "Le", "Type"))), "")
            metrics[name][key] += value
    return metrics


def wait_for_items(server: TorchServe, model: str, items: float) -> Metrics:
    """Waits until the workers have reported this number of items."""

    def read() -> Metrics | None:
        metrics = read_metrics(server, model)
        return metrics if metrics["offpath_items_total"][""] >= items else None

    return eventually(read)


def read_counts(metrics_url: str = "", page: str = "") -> Counter[tuple[str, str]]:
    """Reads a door's answers by status and type from its /metrics, or from a page of it."""
    page = page or httpx.get(metrics_url, trust_env=False).text
    found = re.findall(COUNT, page, re.MULTILINE)
    return Counter({(status, kind): int(count) for status, kind, count in found})


def count_log_lines(server: TorchServe) -> int:
    """Counts the lines of all log files."""
    return sum(len(path.read_bytes().splitlines()) for path in server.log_dir.iterdir())
