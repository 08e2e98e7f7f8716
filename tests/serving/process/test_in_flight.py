from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from offpath.serving.process.in_flight import count_unanswered
from tests.support.eventually import eventually

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
