"""Servers from PyPI: what each is told; and started, where they are set up (`slow`)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import psutil
import pytest

from offpath.archive.photographs import find_sources
from offpath.profiling.experiments.compare import check_replies, make_checks
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers import ray_serve
from offpath.profiling.servers.registry import ENVIRONMENTS, make_servers
from offpath.profiling.servers.server_adapter import Start
from offpath.serving.process.processes import is_running

PYTHON = Path("/environment/bin/python")


@pytest.fixture(scope="module")
def model():
    return load_model("near-free")


@pytest.fixture
def make(model):
    return lambda name: make_servers([name], model, cores=2)[0]


@pytest.fixture(params=ENVIRONMENTS)
def server(request, make):
    return make(request.param)


@pytest.fixture
def start(tmp_path):
    return Start(PYTHON, tmp_path / "folder", tmp_path / "scratch", (4321, 4322))


@pytest.mark.parametrize("name", ["mosec", "triton"])
def test_what_listens_everywhere_by_default_is_told_loopback(name, make, start):
    command = " ".join(make(name).make_command(start))
    assert "127.0.0.1" in command and "4321" in command


def test_ray_does_not_run_unconfined(make, monkeypatch):
    monkeypatch.setattr(ray_serve, "why_no_namespace", lambda: "nobody may")
    assert "Ray listens on all addresses and nobody may" in make("offpath-ray").why_not()


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("is_killed", [False, True], ids=["ended", "killed"])
def test_a_started_server_answers_as_the_reference_and_leaves_no_process(
    server, is_killed, model, tmp_path
):
    if server.why_not() is not None:
        pytest.skip(server.why_not())
    server.prepare(tmp_path / server.name)
    photographs = [path.read_bytes() for path in find_sources()]
    checks = make_checks(model, photographs)
    with server.running(tmp_path / server.name) as running:
        url = running.predict_url
        difference = check_replies(server.name, url, server.call, checks)
        assert difference < (1e-5 if server.kind == "pillow" else 0.01)
        bad = httpx.post(url, content=b"no", headers=server.call.all_headers)
        assert bad.status_code != 200
        groups = running.groups()
        assert len(groups["workers"]) == 2
        pids = {pid for pids in groups.values() for pid in pids}
        members = [process for process in psutil.process_iter() if process.pid in pids]
        assert running.is_running() and running.log_path.exists()
        if is_killed:
            os.kill(groups["frontend"][0], signal.SIGKILL)
    assert [process for process in members if is_running(process)] == []
