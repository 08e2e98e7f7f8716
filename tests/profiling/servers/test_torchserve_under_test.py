"""TorchServe under test: the naive handler's own S3 server, and ports that are taken."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

import offpath.serving.torchserve.server
from offpath.archive.photographs import find_sources
from offpath.handler.errors import ExpectedError
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.running_server import list_own_groups
from offpath.profiling.servers.s3_servers import S3Server, make_environ
from offpath.profiling.servers.s3_store import BUCKET, why_no_store
from offpath.profiling.servers.torchserve import (
    RunningTorchServe,
    TorchServeAdapter,
    make_naive_s3,
    make_offpath_s3,
)
from offpath.serving.torchserve.server_settings import Ports
from tests.support.echo_archive import write_mar
from tests.support.eventually import eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

Started = tuple[TorchServeAdapter, RunningTorchServe]


def make_echo(folder: Path) -> TorchServeAdapter:
    server = TorchServeAdapter("echo", lambda to, _: write_mar(to, "classifier"))
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
    choose = offpath.serving.torchserve.server.choose_ports
    left = [port] * times

    def choose_taken(settings) -> Ports:
        ports = choose(settings)
        return replace(ports, inference=left.pop()) if left else ports

    monkeypatch.setattr(offpath.serving.torchserve.server, "choose_ports", choose_taken)


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
    # Only children of this process: other tests start servers meanwhile.
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.pid not in before and process.name() == "java"
    ]


@pytest.fixture
def start_with_store(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts a server with an S3 server beside it; skips where there is none."""
    reason = why_no_store()
    if reason is not None:
        pytest.skip(reason)

    with contextlib.ExitStack() as stack:

        def start(make: Callable[..., TorchServeAdapter]) -> Started:
            server = make(load_model("near-free"), 1)
            server.prepare(tmp_path / "store")
            return server, stack.enter_context(server.running())

        yield start


def post_three(running: RunningTorchServe) -> None:
    photograph = find_sources()[0].read_bytes()
    for _ in range(3):
        reply = httpx.post(running.predict_url, content=photograph, trust_env=False, timeout=60)
        assert reply.status_code == 200, reply.text


def list_objects(running: RunningTorchServe, prefix: str = "") -> list[str]:
    environ = psutil.Process(running.groups()["workers"][0]).environ()
    client = S3Server(environ["AWS_ENDPOINT_URL_S3"], make_environ()).client()
    found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
    return [row["Key"] for row in found.get("Contents", [])]


def test_naive_handler_puts_one_object_a_prediction(start_with_store) -> None:
    server, running = start_with_store(make_naive_s3)
    post_three(running)
    assert len(list_objects(running)) == 3
    (store,) = running.groups()["beside"]
    assert psutil.pid_exists(store)
    assert set(list_own_groups(running)) == {"frontend", "workers"}
    # Rounds are alike although each had an address of its own.
    assert server.settings["s3"] and "ENDPOINT" not in str(server.settings)


def test_our_log_ships_its_segments_to_the_store(start_with_store) -> None:
    server, running = start_with_store(make_offpath_s3)
    post_three(running)
    keys = eventually(lambda: list_objects(running, "offpath/dt="))
    assert all(key.endswith(".jsonl.gz") for key in keys)
    assert "127.0.0.1" not in str(server.settings)
