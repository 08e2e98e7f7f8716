"""Alerts and dashboard on a real Prometheus that scrapes a real server."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pytest

from offpath.handler import errors
from tests.conftest import build
from tests.support.eventually import eventually
from tests.support.front import FrontProcess
from tests.support.images import jpeg
from tests.support.monitoring import DEPLOY, Prometheus, run_prometheus

DASHBOARD = DEPLOY / "grafana" / "offpath.json"
RULES = DEPLOY / "prometheus" / "alerts_test.yml"
# Its readings need a GPU.
GPU_PANEL = "GPU"


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here: apt install prometheus brings it")


def test_alerts_fire_when_they_should_and_not_before() -> None:
    need("promtool")
    done = subprocess.run(["promtool", "test", "rules", RULES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alert_on_what_clients_send_leaves_out_every_5xx() -> None:
    types = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, errors.ItemError) and one.status >= 500
    }
    text = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    (left_out,) = re.findall(r'Type!~"(\S+)"', text)
    (of_model,) = re.findall(r'Type=~"(\S+)"', text)
    assert set(left_out.split("|")) == types
    assert set(of_model.split("|")) == types - {"DeadlineExceeded"}


class Watched(NamedTuple):
    door: FrontProcess
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A server behind the door, with a prediction log, after some seconds of requests."""
    need("prometheus")
    folder = tmp_path_factory.mktemp("watched")
    (folder / "log").mkdir()
    log = {"uri": f"file://{folder}/log", "segment_max_age_s": 1.0}
    build(folder / "store", "near-free", "near-free", prediction_log=log)
    spool = {"OFFPATH_SPOOL_DIR": str(folder / "spool")}
    with FrontProcess(folder / "store", folder / "logs", **spool) as door:
        target = door.metrics_url.removesuffix("/metrics")
        with run_prometheus(folder, target) as prometheus:
            prometheus.wait_until('up{job="offpath"} == 1')
            send(door, 100)
            yield Watched(door, prometheus)


def send(door: FrontProcess, rounds: int) -> None:
    with httpx.Client(base_url=door.url, timeout=None) as http:
        for _ in range(rounds):
            for body in (jpeg(), b"no image at all"):
                http.post("/predictions/near-free", content=body)
            http.get("/predictions/near-free")
            time.sleep(0.05)  # Prometheus scrapes several times meanwhile.


@pytest.mark.slow
@pytest.mark.server
def test_every_panel_of_the_dashboard_shows_something(watched: Watched) -> None:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "8s").replace("$model", ".*")
            if panel["title"] != GPU_PANEL:
                watched.prometheus.wait_until(f"({query}) >= 0")


@pytest.mark.slow
@pytest.mark.server
def test_every_alert_is_evaluated_and_a_lost_worker_raises_one(watched: Watched) -> None:
    door, prometheus = watched
    for _ in range(2):
        before = set(door.python_workers())
        for worker in before:
            os.kill(worker, signal.SIGKILL)
        eventually(lambda: len(set(door.python_workers()) - before) == len(before))
        prometheus.wait_until("increase(offpath_worker_starts_total[1m]) > 0")
    prometheus.wait_until('ALERTS{alertname="OffpathWorkerRestarts"}')
    # What OffpathCrashLoop counts.
    prometheus.wait_until("changes(WorkerLoadTime[2m]) >= 2")
    (group,) = prometheus.ask("rules")["groups"]
    assert len(group["rules"]) == 22
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
    alerts = [rule for rule in group["rules"] if rule["type"] == "alerting"]
    firing = {rule["name"] for rule in alerts if rule["state"] == "firing"}
    # Half of the requests were no images; that one waits for its five minutes.
    assert firing == {"OffpathWorkerRestarts"}
    refused = 'offpath_door_responses_total{status="405", type="MethodNotAllowed"} > 50'
    prometheus.wait_until(refused)
    states = {rule["name"]: rule["state"] for rule in alerts}
    # An engine that the archive does not carry is none that was turned down.
    assert states["OffpathEngineRefused"] == "inactive"
    (share,) = (rule for rule in alerts if rule["name"] == "OffpathErrorShare")
    assert share["state"] == "pending"
