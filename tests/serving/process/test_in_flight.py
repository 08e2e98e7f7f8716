from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from offpath.serving.process import in_flight
from offpath.serving.process.in_flight import QUIET_POLLS, count_unanswered, wait_until_answered
from tests.support.eventually import MAX_S, eventually

# More than a tick of the kernel's clock, within which the order of two events is unknown.
TICK_S = 0.03


@pytest.fixture(params=["127.0.0.1", "::1"])
def connections(
    request: pytest.FixtureRequest,
) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Opens three connections and yields the client's and the server's end of each."""
    with ExitStack() as stack:
        family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
        listener = stack.enter_context(socket.create_server((request.param, 0), family=family))
        pairs = []
        for _ in range(3):
            client = socket.create_connection(listener.getsockname()[:2])
            pairs.append((client, listener.accept()[0]))
            for end in pairs[-1]:
                stack.enter_context(end)
        yield pairs


def answer(client: socket.socket, server: socket.socket) -> None:
    server.recv(10)
    time.sleep(TICK_S)
    server.sendall(b"answer")
    client.recv(10)


def test_requests_without_an_answer_are_counted(
    connections: list[tuple[socket.socket, socket.socket]],
) -> None:
    port = connections[0][1].getsockname()[1]
    # Open, and nothing was asked.
    assert count_unanswered(port) == 0
    for client, _ in connections[:2]:
        client.sendall(b"request")
    eventually(lambda: count_unanswered(port) == 2)
    answer(*connections[0])
    assert count_unanswered(port) == 1
    # The same connection asks again.
    connections[0][0].sendall(b"request")
    eventually(lambda: count_unanswered(port) == 2)
    assert count_unanswered(port + 1) == 0


def test_wait_ends_with_the_last_answer_or_the_time_limit(
    connections: list[tuple[socket.socket, socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, counts = connections[0][1].getsockname()[1], []

    def count(port: int) -> int:
        counts.append(count_unanswered(port))
        return counts[-1]

    monkeypatch.setattr(in_flight, "count_unanswered", count)
    assert wait_until_answered(port, MAX_S)
    assert counts == QUIET_POLLS * [0]
    connections[0][0].sendall(b"request")
    eventually(lambda: count(port) == 1)
    assert not wait_until_answered(port, 0.2)
    counts.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_until_answered, port, MAX_S)
        eventually(lambda: len(counts) > QUIET_POLLS)
        answer(*connections[0])
        assert waiting.result()
    assert counts[-QUIET_POLLS - 1 :] == [1, *QUIET_POLLS * [0]]
