"""The scaler's query on a real Prometheus, the autoscaler's formula in a loop with a real server.

A replica is a worker of TorchServe that takes 50 ms a request in batches of four: workers start and
end as the formula says. OFFPATH_AUTOSCALING=docs/research/2026-11-22-autoscaling keeps .json, .svg.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import helm_python as helm
import httpx
import pytest

from offpath.profiling.core.run import Cell, Run
from offpath.profiling.report.document import LineChart, Series
from offpath.profiling.report.svg import draw_charts
from offpath.serving.torchserve.management import ManagementClient
from offpath.serving.torchserve.server import TorchServe
from tests.support.echo_archive import MakeMar, make_settings
from tests.support.monitoring import DEPLOY, Prometheus, run_prometheus

pytestmark = [pytest.mark.reliability, pytest.mark.timeout(900)]

BATCH = 4
# Up and down; a client has one request in the server at any time.
CLIENTS = (2, 6, 20, 20, 6, 2)
PHASE_S = 18.0
# The autoscaler's 15 s, 300 s and the query's minute, made short alike.
LOOK_S, DOWN_S, WINDOW, WINDOW_S = 3.0, 12.0, "6s", 6.0
TOLERANCE = 0.1
MOST = 6
NAMES = ("at_s", "phase_s", "clients", "server", "waiting", "queue", "replicas")
# What the formula aims at, a replica: a batch in work and one that waits.
QUERIES = {"in the server": 2 * BATCH, "waiting": BATCH}


def read_query(window: str) -> str:
    """The chart's, less the labels that a cluster adds."""
    with helm.Chart.load(DEPLOY / "kubernetes") as chart:
        values = {"autoscaling": {"enabled": True, "window": window}}
        text = chart.render(values)["offpath/templates/scaledobject.yaml"]
    (query,) = re.findall(r"query: '(.*)'", text)
    return re.sub(r"\{.*?\}", "", query)


@dataclass
class Autoscaler:
    """What Kubernetes does with a metric: the formula, its tolerance, the stabilisation window."""

    target: float
    replicas: int = 1
    _seen: list[tuple[float, int]] = field(default_factory=list)

    def decide(self, now_s: float, metric: float) -> int:
        ratio = metric / (self.replicas * self.target)
        wanted = self.replicas
        if abs(ratio - 1) > TOLERANCE:
            wanted = min(max(math.ceil(self.replicas * ratio), 1), MOST)
        self._seen.append((now_s, wanted))
        # Down to the highest of what was wanted lately, up at once.
        lately = [count for at_s, count in self._seen if now_s - at_s <= DOWN_S]
        self.replicas = max(wanted, min(self.replicas, max(lately)))
        return self.replicas


@contextmanager
def changing_clients(url: str) -> Iterator[list[int]]:
    """Clients that ask without a pause; as many as the list's only element says."""
    wanted, stop = [0], threading.Event()

    def ask(number: int) -> None:
        with httpx.Client(timeout=10, trust_env=False) as http:
            while not stop.is_set():
                if number < wanted[0]:
                    # TorchServe ends a worker under its batch, which then has no answer.
                    with suppress(httpx.HTTPError):
                        http.post(url, content=b"slow")
                else:
                    time.sleep(0.1)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(max(CLIENTS))]
    for thread in threads:
        thread.start()
    try:
        yield wanted
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class Trial:
    """One query in the loop; a sample a second."""

    def __init__(self, prometheus: Prometheus, management: ManagementClient) -> None:
        self._prometheus, self._management = prometheus, management
        self.samples: dict[str, list[float]] = {name: [] for name in NAMES}

    def ask(self, query: str) -> float:
        (series,) = self._prometheus.ask("query", query=query)["result"]
        return float(series["value"][1])

    def run(self, name: str, wanted: list[int]) -> None:
        """The load's phases, with the loop closed over one of QUERIES."""
        in_server = read_query(WINDOW)
        waiting = in_server.replace("ts_inference_latency", "ts_queue_latency")
        scaler, began = Autoscaler(QUERIES[name]), time.monotonic()
        for clients in CLIENTS:
            wanted[0] = clients
            phase = time.monotonic()
            while time.monotonic() < phase + PHASE_S:
                at_s, phase_s = time.monotonic() - began, time.monotonic() - phase
                (status,) = self._management.describe("echo")
                figures = {"server": self.ask(in_server), "waiting": self.ask(waiting)}
                before = scaler.replicas
                metric = figures["server" if name == "in the server" else "waiting"]
                if scaler.decide(at_s, metric) != before:
                    self._management.scale("echo", scaler.replicas)
                figures |= {"at_s": at_s, "phase_s": phase_s, "clients": clients}
                figures["queue"] = queued(status)
                figures["replicas"] = scaler.replicas
                for key, value in figures.items():
                    self.samples[key].append(value)
                next_s = began + at_s + LOOK_S
                time.sleep(max(0.0, next_s - time.monotonic()))

    def at(self, clients: int, key: str) -> list[float]:
        """Samples of the phases with so many clients, when a rate's window is over."""
        samples = self.samples
        rows = zip(samples["phase_s"], samples["clients"], samples[key])
        return [v for phase_s, n, v in rows if n == clients and phase_s > WINDOW_S + 2]

    def changes(self) -> int:
        """How often the replicas turned from up to down or back."""
        steps = [
            b - a
            for a, b in zip(self.samples["replicas"], self.samples["replicas"][1:])
        ]
        signs = [step > 0 for step in steps if step]
        return sum(a != b for a, b in zip(signs, signs[1:]))


def queued(status: object) -> int:
    """The length of TorchServe's own queue."""
    left: int = status.queue_left  # type: ignore[attr-defined]
    return 200 - left


@pytest.fixture
def server(make_mar: MakeMar) -> Iterator[TorchServe]:
    settings = make_settings(make_mar(), overrides={"job_queue_size": "200"})
    with TorchServe(settings) as running:
        yield running


def test_replicas_follow_the_requests_in_the_server(
    server: TorchServe, tmp_path: Path
) -> None:
    url = f"{server.inference_url}/predictions/echo"
    trials = {}
    with (
        run_prometheus(tmp_path, server.metrics_url) as prometheus,
        server.management() as management,
    ):
        for _ in range(3):
            httpx.post(url, content=b"slow", timeout=60)
        prometheus.wait_until("ts_inference_latency_microseconds > 0")
        for name in QUERIES:
            management.scale("echo", 1)
            trials[name] = trial = Trial(prometheus, management)
            with changing_clients(url) as wanted:
                wanted[0] = CLIENTS[0]
                time.sleep(8)
                trial.run(name, wanted)
            report(name, trial)
    keep(trials)
    good, bad = trials["in the server"], trials["waiting"]
    # Little's law: the clients are what is in the server.
    for clients in set(CLIENTS):
        assert mean(good.at(clients, "server")) == pytest.approx(clients, rel=0.25)
    assert max(good.samples["replicas"]) == math.ceil(max(CLIENTS) / (2 * BATCH))
    assert good.samples["replicas"][-1] == 1
    # Up, and down: never back, though the load stays for two phases.
    assert good.changes() == 1 < bad.changes()


def report(name: str, trial: Trial) -> None:
    print(f"\n{name}: {trial.changes()} turns; replicas {trial.samples['replicas']}")
    print(
        "| clients | in the server, by the query | wait, by the query | queue, seen |"
    )
    print("|---|---|---|---|")
    for clients in sorted(set(CLIENTS)):
        cells = [mean(trial.at(clients, k)) for k in ("server", "waiting", "queue")]
        print(f"| {clients} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |")


def keep(trials: dict[str, Trial]) -> None:
    """Raw values and picture, where they were asked for."""
    path = os.environ.get("OFFPATH_AUTOSCALING")
    if path is None:
        return
    settings = {"phases": list(CLIENTS), "phase_s": PHASE_S, "look_s": LOOK_S}
    settings |= {"down_s": DOWN_S, "window": WINDOW, "targets": QUERIES}
    run = Run("autoscaling", f"pytest -m reliability {Path(__file__).name}", settings)
    charts = []
    for name, trial in trials.items():
        run.variants[name] = {"target": QUERIES[name]}
        run.add(0, name, Cell(workload="echo, 50 ms"), trial.samples)
        at_s = trial.samples["at_s"]
        series = [
            Series(label, list(zip(at_s, trial.samples[key])))
            for label, key in (
                ("clients", "clients"),
                ("in the server", "server"),
                ("waiting", "waiting"),
                ("replicas", "replicas"),
            )
        ]
        title = f"Replicas that follow what is {name}".replace("is waiting", "waits")
        charts.append(LineChart(title, "s", "", series))
    run.save(Path(f"{path}.json"))
    draw_charts(charts, Path(f"{path}.svg"))
