"""A proxy in front of an S3 server that imitates the outages an S3 client meets."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

CHUNK_BYTES = 1 << 16
PASS, UNANSWERED, REFUSED = "pass", "unanswered", "refused"
SLOW_DOWN, HANGING, DENIED = "slow-down", "hanging", "denied"
OUTAGES = (REFUSED, SLOW_DOWN, HANGING, DENIED)
EXPIRED, REDIRECTED = "expired credentials", "redirected"
LOGIN_PAGE, TRUNCATED = "login page", "truncated"
SKEWED, TIMED_OUT, DAMAGED = "wrong clock", "slow upload", "damaged body"
MOVED, NO_CHECKSUMS = "another region", "no checksums"
# An ETag of an object that S3 has encrypted by KMS is not its MD5.
MD5_ETAG = re.compile(rb'(?i)\r\netag: "[0-9a-f]{32}"')
KMS_ETAG = b'\r\nETag: "%s"' % (b"0" * 32)


def _error(code: str, message: str) -> str:
    return f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"


# Mode -> status with a further header, and body.
ANSWERS = {
    SLOW_DOWN: ("503 Service Unavailable", _error("SlowDown", "Please reduce your request rate.")),
    DENIED: ("403 Forbidden", _error("AccessDenied", "Access Denied")),
    EXPIRED: ("400 Bad Request", _error("ExpiredToken", "The provided token has expired.")),
    SKEWED: ("403 Forbidden", _error("RequestTimeTooSkewed", "The time difference is too large.")),
    TIMED_OUT: ("400 Bad Request", _error("RequestTimeout", "The socket was not read from.")),
    DAMAGED: ("400 Bad Request", _error("BadDigest", "The digest did not match.")),
    MOVED: (
        "301 Moved Permanently\r\nx-amz-bucket-region: eu-central-1",
        _error("PermanentRedirect", "Use the bucket's endpoint."),
    ),
    NO_CHECKSUMS: ("400 Bad Request", _error("InvalidArgument", "Unsupported header.")),
    REDIRECTED: ("307 Temporary Redirect\r\nLocation: http://127.0.0.1:9/other", ""),
    LOGIN_PAGE: ("200 OK", "<html>Please log in.</html>"),
    TRUNCATED: ("200 OK", ""),
}
# Wrong answers, which are not outages.
WRONG = tuple(mode for mode in ANSWERS if mode not in OUTAGES)


class FaultProxy:
    """Passes requests through, refuses connections, answers with errors, or never answers.

    A TCP proxy on loopback, in a thread of its own. Bytes pass unchanged, so signatures stay valid:
    the client signs for the proxy's address. UNANSWERED passes requests through, but not their
    answers.

    Args:
        has_kms: the ETags of answers are those of a bucket that S3 encrypts by KMS.
    """

    def __init__(self, upstream_url: str, has_kms: bool = False) -> None:
        self._has_kms = has_kms
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname, parts.port)
        self._mode, self._port = PASS, 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def endpoint_url(self) -> str:
        """The address of the proxy."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> FaultProxy:
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
        assert task is not None
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

    def set_mode(self, mode: str) -> None:
        """Changes the mode and closes open connections."""
        self.call(self._switch(mode))

    async def _switch(self, mode: str) -> None:
        self._mode = mode
        await self.hang_up()
        if mode != REFUSED:
            await self.listen()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection as the mode says."""
        if self._mode == HANGING:
            while await reader.read(CHUNK_BYTES):
                pass
        elif self._mode in ANSWERS:
            await _answer_error(reader, writer, self._mode)
        else:
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
            try:
                answers = _copy(up_reader, writer, self._change)
                await asyncio.gather(_copy(reader, up_writer, bytes), answers)
            finally:
                up_writer.close()

    def _change(self, data: bytes) -> bytes:
        """Returns what a client hears of an answer; with UNANSWERED `100 Continue` alone."""
        if self._mode == UNANSWERED and not data.startswith(b"HTTP/1.1 100 "):
            return b""
        return MD5_ETAG.sub(KMS_ETAG, data) if self._has_kms else data


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[bytes], bytes]
) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(change(data))
        await writer.drain()
    writer.close()


async def _answer_error(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mode: str
) -> None:
    """Reads the whole request first, so that the client gets the answer and no broken pipe."""
    status, body = ANSWERS[mode]
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    if "expect: 100-continue" in head:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    for line in head.split("\r\n"):
        if line.startswith("content-length:"):
            await reader.readexactly(int(line.split(":")[1]))
    answer = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
    )
    writer.write(answer[: len(answer) // 2] if mode == TRUNCATED else answer)
    await writer.drain()
