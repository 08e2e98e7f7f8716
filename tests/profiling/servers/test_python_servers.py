"""bentoml, ray-serve, litserve, mosec: how they are started; and started, where they are set up."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import psutil
import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.answers import check_answers, make_checks
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers import bentoml, confined, environments, marked, ray_serve
from offpath.profiling.servers.registry import ENVIRONMENTS, make_servers
from offpath.profiling.servers.services.settings import VARIABLE, ServiceSettings

NAMES = ("bentoml", "ray-serve", "litserve", "mosec")
PYTHON = Path("/environment/bin/python")


@pytest.fixture(scope="module")
def model():
    return load_model("near-free")


@pytest.fixture(params=NAMES)
def server(request, model):
    (server,) = make_servers([request.param], model, cores=3)
    return server


def test_a_service_is_told_what_its_adapter_was_set_to(
    server, model, tmp_path, monkeypatch
):
    server.batch_size = 5
    env = server.make_environment(PYTHON, 4321, tmp_path)
    monkeypatch.setenv(VARIABLE, env[VARIABLE])
    assert ServiceSettings.from_environment() == ServiceSettings(
        "near-free", 4321, 5, 1, workers=3, threads=1
    )
    assert server.settings["max_batch_size"] == 5
    assert server.settings["workers"] == 3
    assert env["OMP_NUM_THREADS"] == "1"
    # Sockets and scratch files of a server that is killed go with the folder.
    assert env["TMPDIR"] == str(tmp_path)
    json.dumps(server.settings)


def test_all_versions_are_pinned():
    for name in NAMES:
        _, requirements = ENVIRONMENTS[name]
        assert all("==" in requirement for requirement in requirements)


def test_a_server_that_is_not_set_up_says_how(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OFFPATH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(ray_serve.ALLOW_VARIABLE, "1")
    assert f"offpath bench setup {server.name}" in server.why_not()


def test_servers_report_nothing_home(model, tmp_path):
    makers = (bentoml.make_bentoml, ray_serve.make_ray_serve)
    in_front, ray = (
        maker(model, 2).make_environment(PYTHON, 4321, tmp_path) for maker in makers
    )
    assert in_front["BENTOML_DO_NOT_TRACK"] == "True"
    assert in_front["BENTOML_HOME"].startswith(str(tmp_path))
    assert ray["RAY_USAGE_STATS_ENABLED"] == "0"
    assert ray["RAY_TMPDIR"] == str(tmp_path)


@pytest.mark.parametrize("name", ["bentoml", "mosec"])
def test_what_listens_everywhere_by_default_is_told_loopback(name, model):
    (server,) = make_servers([name], model, cores=2)
    command = server.make_command(PYTHON, 4321)
    assert "127.0.0.1" in command and "4321" in command


def test_ray_is_confined(model, monkeypatch):
    monkeypatch.setattr(ray_serve, "why_no_namespace", lambda: None)
    command = ray_serve.make_ray_serve(model, 2).make_command(PYTHON, 4321)
    assert command[:3] == [str(PYTHON), "-m", confined.MODULE]


def test_ray_does_not_run_unconfined_unless_allowed(model, monkeypatch, tmp_path):
    monkeypatch.setenv("OFFPATH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ray_serve, "why_no_namespace", lambda: "nobody may")
    server = ray_serve.make_ray_serve(model, 2)
    monkeypatch.delenv(ray_serve.ALLOW_VARIABLE, raising=False)
    assert "Ray listens on all addresses and nobody may" in server.why_not()
    monkeypatch.setenv(ray_serve.ALLOW_VARIABLE, "1")
    assert "not set up" in server.why_not()
    assert confined.MODULE not in server.make_command(PYTHON, 4321)


@pytest.mark.slow
@pytest.mark.server
def test_a_started_server_answers_as_the_reference_and_leaves_no_process(
    server, model, tmp_path
):
    if server.why_not() is not None:
        pytest.skip(server.why_not())
    server.workers = 2
    server.prepare(tmp_path / server.name)
    workload = load_workload("photos-55k")
    checks = make_checks(model, workload.read())
    with server.running() as running:
        difference = check_answers(
            server.name, running.predict_url, server.call, checks
        )
        assert difference < 1e-5
        reply = httpx.post(running.predict_url, content=b"no", trust_env=False)
        assert reply.status_code != 200
        groups = running.groups()
        assert len(groups["workers"]) == 2 and groups["frontend"]
        members = [psutil.Process(pid) for pid in sum(map(list, groups.values()), [])]
        assert running.is_running() and running.log_path().exists()
    assert not any(process.is_running() for process in members)


@pytest.mark.slow
@pytest.mark.server
def test_a_server_that_does_not_start_says_why_and_leaves_no_process(
    server, tmp_path, monkeypatch
):
    if server.why_not() is not None:
        pytest.skip(server.why_not())
    monkeypatch.setattr(ServiceSettings, "to_environment", lambda self: {})
    server.prepare(tmp_path / server.name)
    before = set(psutil.pids())
    with pytest.raises(ExpectedError, match="(?s)ended while starting.*KeyError"):
        with server.running():
            pass
    # Of this server alone: others may be tested at the same time.
    folder = str(environments.environments_folder() / server.environment)
    born = [p for p in psutil.process_iter() if p.pid not in before]
    assert not [p for p in born if folder in marked.command_line(p)]
