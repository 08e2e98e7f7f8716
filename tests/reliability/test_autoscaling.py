"""The scaler's query on a real Prometheus counts the requests that are in a real server.

Little's law is the reference: closed-loop clients have one request each in the server at any time,
so the query must answer the number of clients. What Kubernetes makes of the number is its own
formula (docs/research/2026-11-22-autoscaling.md shows it in a loop).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import helm_python as helm
import httpx
import pytest

from offpath.serving.torchserve.server import TorchServe
from tests.support.echo_archive import MakeMar, make_settings
from tests.support.front import load
from tests.support.monitoring import DEPLOY, Prometheus, run_prometheus

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(300)]

WINDOW, WINDOW_S = "6s", 6.0
SAMPLES = 6


def read_query() -> str:
    """Returns the chart's query without the labels that a cluster adds."""
    with helm.Chart.load(DEPLOY / "kubernetes") as chart:
        values = {"autoscaling": {"enabled": True, "window": WINDOW}}
        text = chart.render(values)["offpath/templates/scaledobject.yaml"]
    (query,) = re.findall(r"query: '(.*)'", text)
    return re.sub(r"\{.*?\}", "", query)


def ask(prometheus: Prometheus, query: str) -> float:
    (series,) = prometheus.ask("query", query=query)["result"]
    return float(series["value"][1])


@pytest.fixture
def server(make_mar: MakeMar) -> Iterator[TorchServe]:
    settings = make_settings(make_mar(), overrides={"job_queue_size": "200"})
    with TorchServe(settings) as running:
        yield running


def test_the_query_counts_the_requests_in_the_server(server: TorchServe, tmp_path: Path) -> None:
    url = f"{server.inference_url}/predictions/echo"
    with run_prometheus(tmp_path, server.metrics_url) as prometheus:
        httpx.post(url, content=b"slow", timeout=60)
        prometheus.wait_until("ts_inference_latency_microseconds > 0")
        for clients in (2, 6, 20):
            with load(url, [b"slow"], clients) as seen:
                time.sleep(2 * WINDOW_S)
                counts = []
                for _ in range(SAMPLES):
                    counts.append(ask(prometheus, read_query()))
                    time.sleep(1)
            assert set(seen.statuses) == {200} and not seen.broken, seen
            print(f"{clients} clients: {mean(counts):.1f} in the server, by the query")
            assert mean(counts) == pytest.approx(clients, rel=0.25)
