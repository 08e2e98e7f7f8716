"""An HTTP server that answers at once, in a process of its own: what a round trip costs here.

It answers {"cat": 0.75} to everybody and keeps no body.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ANSWER = b'{"cat": 0.75}'
OK = b"200 OK"


class KnownProtocol(asyncio.Protocol):
    """HTTP/1.1, kept connections, bodies with a Content-Length; no pipelining."""

    _head, _left = b"", 0

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
            self._left = find_length(head) - len(body)
        if self._left <= 0:
            head, self._head, self._left = self._head, b"", 0
            self.answer(head)

    def answer(self, head: bytes) -> None:
        """A request has arrived; `head` begins with its method."""
        self.write(OK, ANSWER)

    def write(self, status: bytes, body: bytes) -> None:
        """Sends a reply."""
        head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


def find_length(head: bytes) -> int:
    """Content-Length of a request's head, 0 without one."""
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


async def serve(make_protocol: Callable[[], KnownProtocol]) -> None:
    """Serves until stdin closes; its URL is the first line on stdout."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(make_protocol, "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}/predictions/any", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    # Open connections would be waited for.
    os._exit(0)


@dataclass(frozen=True)
class KnownServer:
    """A running one."""

    url: str
    pid: int


@contextmanager
def run_known_server(module: str = __name__, *arguments: str) -> Iterator[KnownServer]:
    """Runs one apart from the generator and the caller, whose alone Ctrl-C is to handle."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
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
    asyncio.run(serve(KnownProtocol))
