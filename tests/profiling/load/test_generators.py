"""Load generators against a server whose delays, failures and stalls are known."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.load.generators import find_generator
from offpath.profiling.load.window import NO_REPLY, WindowLoad
from tests.support.answering_server import answering_server
from tests.support.known_server import Behaviour, run_known_server
from tests.support.silent_watcher import SilentWatcher

needs_wrk = pytest.mark.skipif(not shutil.which("wrk"), reason="wrk is not installed")


@pytest.fixture
def send(tmp_path):
    """Sends load to a URL: 4 clients without warm-up, unless it is told otherwise."""
    body = tmp_path / "body.jpg"
    body.write_bytes(b"x" * 2000)

    def send(url, generator="locust", watcher=None, **asked):
        settings = {"clients": 4, "warm_up_s": 0, "seconds": 1, **asked}
        sender = find_generator(generator)
        return sender.run(
            WindowLoad(url=url, paths=(body,), **settings), watcher or SilentWatcher()
        )

    return send


def test_failures_are_counted_exactly(send):
    with run_known_server(Behaviour((0.05,), 10)) as server:
        sample = send(server.url, seconds=2)
        served = server.counts().requests
    # At most four are in flight at the end.
    assert (served - 4) // 10 <= sample.failures <= served // 10
    assert sample.statuses == {"200": sample.ok, "503": sample.failures}
    assert len(sample.latencies_ms) == sample.ok > 20


def test_open_loop_counts_each_arrival_of_its_window(send):
    with run_known_server(Behaviour((0.05,), 10)) as server:
        sample = send(server.url, clients=16, seconds=1, rate=80)
        served = server.counts().requests
    # Without a warm-up all but the first arrivals are due in the window.
    assert 0.9 * served <= sample.ok + sample.failures <= served
    assert sample.failures == pytest.approx(served / 10, abs=1)
    assert sample.elapsed_s >= 1


def test_headers_are_sent_and_the_package_is_found_on_sys_path_alone(send, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert any((Path(entry) / "offpath").is_dir() for entry in sys.path if entry)
    with answering_server() as answers:
        sample = send(answers.url, clients=1, seconds=0.5, headers={"X-Needed": "yes"})
    assert set(sample.statuses) == {"200"}
    assert {headers["x-needed"] for _, headers, _ in answers.requests} == {"yes"}


def test_warm_up_is_not_counted_and_clients_wait_for_their_replies(send):
    with run_known_server(Behaviour((0.1,))) as server:
        watcher = SilentWatcher()
        sample = send(server.url, warm_up_s=1, seconds=2, watcher=watcher)
        served = server.counts().requests
    assert watcher.windows == 1
    assert sample.elapsed_s >= 2
    # A client gets a reply in 0.1 s at best.
    assert 0 < sample.ok <= 4 * (sample.elapsed_s / 0.1 + 1)
    assert served > sample.ok
    assert 0 < sample.cpu_s < 1.1 * sample.elapsed_s


def test_a_server_that_is_not_there_gives_no_replies_not_an_error(send):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        sample = send(f"http://127.0.0.1:{taken.getsockname()[1]}/", seconds=1)
    assert sample.ok == 0 and sample.latencies_ms == []
    assert set(sample.statuses) == {NO_REPLY}


def test_a_watcher_that_raises_ends_the_load(send):
    class Impatient(SilentWatcher):
        def on_progress(self, replies: int, elapsed_s: float) -> None:
            raise ExpectedError("the server died")

    with run_known_server() as server:
        with pytest.raises(ExpectedError, match="died"):
            send(server.url, seconds=60, watcher=Impatient())


@pytest.mark.parametrize("generator", ["locust", pytest.param("wrk", marks=needs_wrk)])
def test_several_paths_take_requests_in_turn(send, generator):
    with answering_server() as answers:
        first = f"{answers.url}/models/1"
        sample = send(first, generator, clients=1, more_paths=("/models/2", "/models/3"))
    paths = [path for path, _, _ in answers.requests]
    assert sample.ok > 3
    # wrk asks its script for one request before it sends any.
    assert paths[0] in ("/models/1", "/models/2")
    begin = int(paths[0][-1]) - 1
    assert paths == [f"/models/{1 + (begin + n) % 3}" for n in range(len(paths))]


@needs_wrk
def test_wrk_agrees_with_the_server(send):
    with run_known_server(Behaviour((0.1,), 10)) as server:
        sample = send(server.url, "wrk", seconds=2)
    assert sample.failures == pytest.approx(len(sample.latencies_ms) / 10, abs=1)
    assert min(sample.latencies_ms) > 99
