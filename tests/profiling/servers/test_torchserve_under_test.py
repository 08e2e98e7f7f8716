"""TorchServe under test: the naive handler's own S3 server, and ports that are taken."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

import offpath.serving.torchserve
from offpath.archive.photographs import find_sources
from offpath.handler.errors import ExpectedError
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.window import own_groups
from offpath.profiling.servers.naive_store import BUCKET, why_no_store
from offpath.profiling.servers.s3_servers import S3Server, make_environ
from offpath.profiling.servers.torchserve import TorchServeUnderTest, make_naive_s3
from offpath.serving.settings import Ports
from tests.support.echo_archive import write_mar

pytestmark = pytest.mark.server


def make_echo(folder: Path) -> TorchServeUnderTest:
    server = TorchServeUnderTest("echo", lambda to, _: write_mar(to, "classifier"))
    server.prepare(folder / "echo")
    return server


@pytest.fixture
def taken_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def take_ports(monkeypatch: pytest.MonkeyPatch, port: int, times: int) -> None:
    """The first choices find a port free that somebody binds before Java does."""
    choose = offpath.serving.torchserve.choose_ports
    left = [port] * times

    def choose_taken(settings) -> Ports:
        ports = choose(settings)
        return replace(ports, inference=left.pop()) if left else ports

    monkeypatch.setattr(offpath.serving.torchserve, "choose_ports", choose_taken)


def test_a_port_that_was_taken_meanwhile_is_chosen_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_port: int
) -> None:
    take_ports(monkeypatch, taken_port, times=1)
    before = set(psutil.pids())
    with make_echo(tmp_path).running() as running:
        reply = httpx.post(running.predict_url, content=b"abc", trust_env=False)
    assert reply.text == "3"
    assert not find_java_since(before)


def test_a_port_that_stays_taken_is_said_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_port: int
) -> None:
    take_ports(monkeypatch, taken_port, times=2)
    before = set(psutil.pids())
    with pytest.raises(ExpectedError, match="(?i)address already in use"):
        with make_echo(tmp_path).running():
            pass
    assert not find_java_since(before)


def find_java_since(before: set[int]) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["name"])
        if process.pid not in before and process.info["name"] == "java"
    ]


def test_naive_handler_puts_one_object_a_prediction(tmp_path: Path) -> None:
    reason = why_no_store()
    if reason is not None:
        pytest.skip(reason)
    server = make_naive_s3(load_model("near-free"), 1)
    server.prepare(tmp_path / "naive")
    photograph = find_sources()[0].read_bytes()
    with server.running() as running:
        for _ in range(3):
            reply = httpx.post(
                running.predict_url, content=photograph, trust_env=False, timeout=60
            )
            assert reply.status_code == 200, reply.text
        (store,) = running.groups()["beside"]
        assert set(own_groups(running)) == {"frontend", "workers"}
        endpoint = find_endpoint(running.groups()["workers"][0])
        client = S3Server(endpoint, make_environ()).client()
        assert client.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 3
    assert not psutil.pid_exists(store)
    # Rounds are alike although each had an address of its own.
    assert server.settings["s3"] and "ENDPOINT" not in str(server.settings)


def find_endpoint(worker: int) -> str:
    return psutil.Process(worker).environ()["OFFPATH_NAIVE_ENDPOINT"]
