"""A proxy that adds a network's latency to a server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 16
# boto3 waits for "100 Continue" before it sends an object, so a put takes two answers.
ANSWERS_PER_PUT = 2


class LatencyProxy:
    """A TCP proxy on loopback, in a thread of its own; a context manager.

    Bytes pass unchanged, so signatures stay valid: the client signs for the proxy's address.

    Args:
        upstream_url: address of the server.
        latency_s: time that is added to every answer.
    """

    def __init__(self, upstream_url: str, latency_s: float = 0.0) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._latency_s = latency_s
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def endpoint_url(self) -> str:
        """The address of the proxy."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> LatencyProxy:
        self._thread.start()
        self.call(self.listen())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self.hang_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine on the proxy's thread."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def listen(self) -> None:
        """Accepts connections, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def hang_up(self) -> None:
        """Accepts no more connections and closes the open ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("served outside of a task")
        self._connections.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self.answer(reader, writer)
        except asyncio.CancelledError:
            # `hang_up` cancelled it, which asyncio would log as an error.
            return
        finally:
            self._connections.discard(task)
            writer.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection by passing everything through."""
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
