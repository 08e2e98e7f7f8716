"""TorchServe under test: a stand-in for S3 beside it, and ports that are taken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest

from offpath.archive.photographs import find_sources
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.servers.registry import SERVERS
from offpath.profiling.servers.torchserve import RunningTorchServe, TorchServeAdapter
from tests.support.eventually import eventually

pytestmark = [pytest.mark.server, pytest.mark.slow]

Started = tuple[TorchServeAdapter, RunningTorchServe]


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
