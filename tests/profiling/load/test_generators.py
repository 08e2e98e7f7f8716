"""Load generators against a server whose delays and failures are known."""

from __future__ import annotations

import itertools
import time

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.load.generators import WindowLoad, send_load
from tests.support.answering_server import answering_server


class SilentWatcher:
    """Implements `Watcher` and ignores all calls."""

    windows = 0

    def on_window(self) -> None:
        self.windows += 1

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        pass


@pytest.fixture
def send(tmp_path):
    """Sends load to a URL: 4 clients without warm-up, unless it is told otherwise."""
    body = tmp_path / "body.jpg"
    body.write_bytes(b"x" * 2000)

    def send(url, watcher=None, **asked):
        settings = {"clients": 4, "warm_up_s": 0, "seconds": 1, **asked}
        return send_load(WindowLoad(url=url, paths=(body,), **settings), watcher or SilentWatcher())

    return send


def test_failures_are_counted_exactly(send):
    numbers = itertools.count(1)

    def fail_each_tenth(path: str, body: bytes) -> tuple[int, bytes]:
        time.sleep(0.05)
        return 200 if next(numbers) % 10 else 503, b"{}"

    with answering_server() as server:
        server.respond = fail_each_tenth
        sample = send(server.url, seconds=2)
        served = len(server.requests)
    # At most four are in flight at the end.
    assert sample.statuses.keys() == {"200", "503"}
    assert (served - 4) // 10 <= sample.statuses["503"] <= served // 10
    assert len(sample.latencies_ms) == sample.statuses["200"] > 20


def test_warm_up_is_not_counted_and_clients_wait_for_their_replies(send):
    def wait(path: str, body: bytes) -> tuple[int, bytes]:
        time.sleep(0.1)
        return 200, b"{}"

    with answering_server() as server:
        server.respond = wait
        watcher = SilentWatcher()
        sample = send(server.url, warm_up_s=1, seconds=2, watcher=watcher)
        served = len(server.requests)
    assert watcher.windows == 1
    assert sample.elapsed_s >= 2
    # A client gets a reply in 0.1 s at best.
    assert 0 < sample.statuses["200"] <= 4 * (sample.elapsed_s / 0.1 + 1)
    assert served > sample.statuses["200"]
    assert 0 < sample.cpu_s < 1.1 * sample.elapsed_s


def test_a_watcher_that_raises_ends_the_load(send):
    class Impatient(SilentWatcher):
        def on_progress(self, replies: int, elapsed_s: float) -> None:
            raise ExpectedError("the server died")

    with answering_server() as server:
        with pytest.raises(ExpectedError, match="died"):
            send(server.url, seconds=60, watcher=Impatient())
