"""An HTTP server with known delays, failures and stalls, to check load generators with.

It answers {"cat": 0.75} to every POST, keeps no body, and counts what it did. A GET returns the
counts. Run as a program it serves until stdin closes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

ANSWER = b'{"cat": 0.75}'
OK, FAILED = b"200 OK", b"503 Service Unavailable"


@dataclass(frozen=True)
class Behaviour:
    """The server's delays, failures and stall.

    Attributes:
        delays_s: delays of the requests, taken in turn.
        fail_every: every n-th request is answered with 503; 0 for none.
        stall_at, stall_s: the request at which the whole server stands still, and how long.
    """

    delays_s: tuple[float, ...] = (0.0,)
    fail_every: int = 0
    stall_at: int = 0
    stall_s: float = 0.0


@dataclass
class Counts:
    """The number of requests, and the ms that the server held each one answered with 200."""

    requests: int = 0
    held_ms: list[float] = field(default_factory=list)


class BehavingProtocol(asyncio.Protocol):
    """HTTP/1.1 with persistent connections and Content-Length; all connections share the counts."""

    _head, _left = b"", 0

    def __init__(self, behaviour: Behaviour, counts: Counts) -> None:
        self._behaviour, self._counts = behaviour, counts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Collects head and body, which may arrive in pieces, and answers."""
        if self._left:
            self._left -= len(data)
        else:
            self._head += data
            head, separator, body = self._head.partition(b"\r\n\r\n")
            if not separator:
                return
            self._left = find_length(head) - len(body)
        if self._left <= 0:
            head, self._head, self._left = self._head, b"", 0
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        counts, behaviour = self._counts, self._behaviour
        if head.startswith(b"GET"):
            self._write(OK, json.dumps(asdict(counts)).encode())
            return
        start_s = time.perf_counter()
        counts.requests += 1
        number = counts.requests
        if number == behaviour.stall_at:
            # time.sleep on purpose: the whole server stands still.
            time.sleep(behaviour.stall_s)
        delay_s = behaviour.delays_s[number % len(behaviour.delays_s)]
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, self._reply, number, start_s)

    def _reply(self, number: int, start_s: float) -> None:
        every = self._behaviour.fail_every
        if every and number % every == 0:
            self._write(FAILED, ANSWER)
            return
        self._write(OK, ANSWER)
        self._counts.held_ms.append(1000 * (time.perf_counter() - start_s))

    def _write(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


def find_length(head: bytes) -> int:
    """Returns the Content-Length of a request's head, 0 without one."""
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


@dataclass(frozen=True)
class BehavingServer:
    """A running server."""

    url: str
    pid: int

    def counts(self) -> Counts:
        """Asks the server for its counts so far."""
        # trust_env: no proxy between us and loopback.
        return Counts(**httpx.get(self.url, timeout=None, trust_env=False).json())


@contextmanager
def run_known_server(behaviour: Behaviour = Behaviour()) -> Iterator[BehavingServer]:
    """Runs a server in its own process and session."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(asdict(behaviour))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
        start_new_session=True,
    )
    try:
        yield BehavingServer(process.stdout.readline().strip(), process.pid)
    finally:
        process.kill()
        process.communicate()


async def serve(behaviour: Behaviour) -> None:
    """Serves until stdin closes; prints the URL as the first line on stdout."""
    loop, counts = asyncio.get_running_loop(), Counts()
    server = await loop.create_server(
        lambda: BehavingProtocol(behaviour, counts), "127.0.0.1", 0, backlog=1024
    )
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}/predictions/any", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    # A normal exit would wait for open connections.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(serve(Behaviour(**json.loads(sys.argv[1]))))
