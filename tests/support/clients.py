"""Closed-loop clients that remember which requests were answered.

Load generators keep latencies; the checks of the prediction log need the request ids.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlsplit

TIMEOUT_S = 130.0
# Pause after a refused connection, so that a restarting server is not flooded.
PAUSE_S = 0.05


class Reply(NamedTuple):
    """A client's reply; status 0 means that no reply came."""

    status: int
    latency_ms: float = 0.0
    request_id: str = ""


@contextlib.contextmanager
def sending(
    url: str,
    bodies: Sequence[bytes],
    clients: int,
    pause_s: float = 0.0,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[list[Reply]]:
    """Runs clients during the block; each sends its next request after the last reply and a pause.

    The list is complete after the block.
    """
    replies: list[Reply] = []
    stopped = threading.Event()
    with ThreadPoolExecutor(clients) as pool:
        done = [
            pool.submit(_send_all, url, bodies, number, replies, stopped, pause_s, timeout_s)
            for number in range(clients)
        ]
        try:
            yield replies
        finally:
            stopped.set()
    for one in done:
        one.result()


def send_for(url: str, bodies: Sequence[bytes], clients: int, seconds: float) -> list[Reply]:
    """Returns the replies to some seconds of load."""
    with sending(url, bodies, clients) as replies:
        time.sleep(seconds)
    return replies


def _send_all(
    url: str,
    bodies: Sequence[bytes],
    turn: int,
    replies: list[Reply],
    stopped: threading.Event,
    pause_s: float,
    timeout_s: float,
) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    while not stopped.is_set():
        try:
            replies.append(_send(connection, parts.path, bodies[turn % len(bodies)]))
            stopped.wait(pause_s)
        except (OSError, http.client.HTTPException):
            replies.append(Reply(0))
            connection.close()
            stopped.wait(PAUSE_S)
        turn += 1
    connection.close()


def _send(connection: http.client.HTTPConnection, path: str, body: bytes) -> Reply:
    begin_s = time.perf_counter()
    headers = {"Content-Type": "application/octet-stream"}
    connection.request("POST", path, body, headers)
    reply = connection.getresponse()
    reply.read()
    latency_ms = (time.perf_counter() - begin_s) * 1e3
    return Reply(reply.status, latency_ms, reply.headers.get("x-request-id", ""))
