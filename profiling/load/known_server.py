"""An HTTP server whose delays, failures and stalls are known: a load generator is checked with it.

It answers {"cat": 0.75}, reads bodies without keeping them, and counts what it did.
`python -m profiling.known_server '{"delays_s": [0.2]}'` serves until stdin closes; its URL is the
first line on stdout. A GET returns the counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

ANSWER = b'{"cat": 0.75}'
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
OK, FAILED = b"200 OK", b"503 Service Unavailable"


@dataclass(frozen=True)
class Behaviour:
    """What the server does.

    Attributes:
        delays_s: a request is held for the delay of its number, in turn; none: answered at once.
        fail_every: every so many-th request is answered 503; 0: none.
        stall_at, stall_s: at the request of this number the whole server stands still so long.
    """

    delays_s: tuple[float, ...] = ()
    fail_every: int = 0
    stall_at: int = 0
    stall_s: float = 0.0


@dataclass
class Counts:
    """What the server saw: requests, and how long it held those it answered with 200, in ms."""

    requests: int = 0
    held_ms: list[float] = field(default_factory=list)


class KnownProtocol(asyncio.Protocol):
    """HTTP/1.1, kept connections, bodies with a Content-Length; no pipelining."""

    def __init__(self, behaviour: Behaviour, counts: Counts) -> None:
        self._behaviour, self._counts = behaviour, counts
        self._head = b""
        self._left = 0
        self._start_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        """Head and body may arrive in pieces."""
        if self._left:
            self._left -= len(data)
        else:
            self._head += data
            head, separator, body = self._head.partition(b"\r\n\r\n")
            if not separator:
                return
            self._head = b""
            self._start_s = time.perf_counter()
            if head.startswith(b"GET"):
                self._write(OK, json.dumps(asdict(self._counts)).encode())
                return
            self._left = find_length(head) - len(body)
            if self._left > 0 and b"100-continue" in head.lower():
                # curl (perf_analyzer) waits a second for it before it sends more than 1 MB.
                self._transport.write(CONTINUE)
        if self._left <= 0:
            self._left = 0
            self._answer()

    def _answer(self) -> None:
        counts, behaviour = self._counts, self._behaviour
        counts.requests += 1
        number = counts.requests
        if number == behaviour.stall_at:
            # On purpose not asyncio's sleep: the whole server stands still.
            time.sleep(behaviour.stall_s)
        if not behaviour.delays_s:
            self._reply(number)
            return
        delay_s = behaviour.delays_s[number % len(behaviour.delays_s)]
        asyncio.get_running_loop().call_later(delay_s, self._reply, number)

    def _reply(self, number: int) -> None:
        every = self._behaviour.fail_every
        if every and number % every == 0:
            self._write(FAILED, ANSWER)
            return
        self._write(OK, ANSWER)
        self._counts.held_ms.append(1000 * (time.perf_counter() - self._start_s))

    def _write(self, status: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


def find_length(head: bytes) -> int:
    """Content-Length of a request's head, 0 without one."""
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


async def serve(behaviour: Behaviour) -> None:
    """Serves until stdin closes."""
    loop = asyncio.get_running_loop()
    counts = Counts()
    server = await loop.create_server(
        lambda: KnownProtocol(behaviour, counts), "127.0.0.1", 0, backlog=1024
    )
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}/predictions/any", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    # Open connections would be waited for.
    sys.stdout.flush()
    os._exit(0)


@dataclass(frozen=True)
class KnownServer:
    """A running one."""

    url: str
    pid: int

    def counts(self) -> Counts:
        """What it saw so far."""
        # No proxy between us and loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.url, timeout=30) as reply:
            return Counts(**json.load(reply))


@contextmanager
def run_known_server(behaviour: Behaviour = Behaviour()) -> Iterator[KnownServer]:
    """Runs one in a process of its own, apart from the generator and the caller."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "offpath.profiling.load.known_server",
            json.dumps(asdict(behaviour)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
        # Ctrl-C is ours alone to handle.
        start_new_session=True,
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the known server was started without pipes")
        yield KnownServer(process.stdout.readline().strip(), process.pid)
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    asyncio.run(serve(Behaviour(**json.loads(sys.argv[1]))))
