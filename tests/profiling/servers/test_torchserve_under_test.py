"""TorchServe under test: a stand-in for S3 beside it, and ports that are taken."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import httpx
import psutil
import pytest

import offpath.serving.server.server
from offpath.archive.photographs import find_sources
from offpath.errors import ExpectedError
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.registry import SERVERS
from offpath.profiling.servers.torchserve import RunningTorchServe, TorchServeAdapter
from offpath.serving.server.server_settings import Ports
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


def take_port(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """The choice finds a port free that somebody binds before Java does."""
    choose = offpath.serving.server.server.choose_ports

    def choose_taken(settings) -> Ports:
        return replace(choose(settings), inference=port)

    monkeypatch.setattr(offpath.serving.server.server, "choose_ports", choose_taken)


def test_a_port_that_was_taken_meanwhile_is_said_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_port: int
) -> None:
    take_port(monkeypatch, taken_port)
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
    """Starts a server with a stand-in for S3 beside it."""
    with contextlib.ExitStack() as stack:

        def start(name: str) -> Started:
            server = SERVERS[name](load_model("near-free"), 1)
            server.prepare(tmp_path / "store")
            return server, stack.enter_context(server.running())

        yield start


def post_three(running: RunningTorchServe) -> None:
    photograph = find_sources()[0].read_bytes()
    for _ in range(3):
        reply = httpx.post(running.predict_url, content=photograph, trust_env=False, timeout=60)
        assert reply.status_code == 200, reply.text


def list_puts(running: RunningTorchServe) -> list[str]:
    """Returns the path of each put, which the stand-in prints after its address."""
    (store,) = running.groups()["beside"]
    return unquote(Path(f"/proc/{store}/fd/1").read_text()).splitlines()[1:]


def test_naive_handler_puts_one_object_a_prediction(start_with_store) -> None:
    server, running = start_with_store("torchserve-naive-s3")
    post_three(running)
    puts = list_puts(running)
    assert len(puts) == 3 == len(set(puts))
    assert all(path.startswith("/offpath-predictions/predictions/") for path in puts)
    assert set(running.groups()) == {"frontend", "workers", "beside"}
    # The settings of a result, without the address of one start.
    assert server.settings["s3"] and "ENDPOINT" not in str(server.settings)


def test_our_log_ships_its_segments_to_the_stand_in(start_with_store) -> None:
    server, running = start_with_store("offpath-s3")
    post_three(running)
    puts = eventually(lambda: list_puts(running))
    assert all(path.startswith("/offpath-predictions/offpath/dt=") for path in puts)
    assert "127.0.0.1" not in str(server.settings)
