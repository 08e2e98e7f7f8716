"""A proxy in front of an S3 server that can take it away: the outages an S3 client meets.

It passes bytes through untouched (signatures stay valid: the client signs for the proxy's address)
with a latency, or refuses connections, answers every request with an error, or never answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit

PASS, REFUSED, SLOW_DOWN, HANGING, DENIED = (
    "pass",
    "refused",
    "slow-down",
    "hanging",
    "denied",
)
OUTAGES = (REFUSED, SLOW_DOWN, HANGING, DENIED)
ANSWERS = {
    SLOW_DOWN: (
        "503 Service Unavailable",
        "SlowDown",
        "Please reduce your request rate.",
    ),
    DENIED: ("403 Forbidden", "AccessDenied", "Access Denied"),
}
CHUNK_BYTES = 1 << 16
# boto3 waits for "100 Continue" before it sends an object: two answers of the proxy make a put.
ANSWERS_PER_PUT = 2


class FaultProxy:
    """A TCP proxy on loopback, in a thread of its own; a context manager.

    Args:
        upstream_url: The S3 server.
        latency_s: Added to every answer that is passed through.
    """

    def __init__(self, upstream_url: str, latency_s: float = 0.0) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._latency_s = latency_s
        self._mode = PASS
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def endpoint_url(self) -> str:
        """Where the proxy answers; the same through all modes."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._hang_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def set_mode(self, mode: str) -> None:
        """Changes what clients meet; connections that are open are closed."""
        self._call(self._change(mode))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def _change(self, mode: str) -> None:
        self._mode = mode
        await self._hang_up()
        if mode != REFUSED:
            await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _hang_up(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("served outside of a task")
        self._connections.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        except asyncio.CancelledError:
            # The mode changed or the proxy ends: asyncio would log the cancelling as an error.
            return
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._mode == HANGING:
            while await reader.read(CHUNK_BYTES):
                pass
        elif self._mode in ANSWERS:
            await _answer_error(reader, writer, *ANSWERS[self._mode])
        else:
            await self._pass(reader, writer)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        try:
            await asyncio.gather(
                _copy(reader, up_writer, 0.0),
                _copy(up_reader, writer, self._latency_s),
            )
        finally:
            up_writer.close()


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, latency_s: float
) -> None:
    while data := await reader.read(CHUNK_BYTES):
        if latency_s:
            await asyncio.sleep(latency_s)
        writer.write(data)
        await writer.drain()
    writer.close()


async def _answer_error(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    status: str,
    code: str,
    message: str,
) -> None:
    """Takes one request whole, so that the client reads the answer instead of a broken pipe."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    if "expect: 100-continue" in head:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    for line in head.split("\r\n"):
        if line.startswith("content-length:"):
            await reader.readexactly(int(line.split(":")[1]))
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
    )
    await writer.drain()
