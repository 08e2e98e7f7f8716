"""A proxy in front of an S3 server that imitates the outages an S3 client meets."""

from __future__ import annotations

import asyncio
from typing import Any

from offpath.profiling.servers.latency_proxy import CHUNK_BYTES, LatencyProxy

PASS, UNANSWERED, REFUSED = "pass", "unanswered", "refused"
SLOW_DOWN, HANGING, DENIED = "slow-down", "hanging", "denied"
OUTAGES = (REFUSED, SLOW_DOWN, HANGING, DENIED)
EXPIRED, REDIRECTED = "expired credentials", "redirected"
LOGIN_PAGE, TRUNCATED = "login page", "truncated"
# Wrong answers, which are not outages.
WRONG = (EXPIRED, REDIRECTED, LOGIN_PAGE, TRUNCATED)


def _error(code: str, message: str) -> str:
    return f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"


# Mode -> status with a further header, and body.
ANSWERS = {
    SLOW_DOWN: (
        "503 Service Unavailable",
        _error("SlowDown", "Please reduce your request rate."),
    ),
    DENIED: ("403 Forbidden", _error("AccessDenied", "Access Denied")),
    EXPIRED: (
        "400 Bad Request",
        _error("ExpiredToken", "The provided token has expired."),
    ),
    REDIRECTED: ("307 Temporary Redirect\r\nLocation: http://127.0.0.1:9/other", ""),
    LOGIN_PAGE: ("200 OK", "<html>Please log in.</html>"),
    TRUNCATED: ("200 OK", ""),
}


class OnlyContinue:
    """A writer to a client that hears nothing but `100 Continue`."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.drain, self.close = writer.drain, writer.close

    def write(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 100 "):
            self._writer.write(data)


class FaultProxy(LatencyProxy):
    """Passes requests through, refuses connections, answers with errors, or never answers.

    UNANSWERED passes requests through, but not their answers.
    """

    _mode = PASS

    def set_mode(self, mode: str) -> None:
        """Changes the mode and closes open connections."""
        self.call(self._change(mode))

    async def _change(self, mode: str) -> None:
        self._mode = mode
        await self.hang_up()
        if mode != REFUSED:
            await self.listen()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == HANGING:
            while await reader.read(CHUNK_BYTES):
                pass
        elif self._mode in ANSWERS:
            is_cut = self._mode == TRUNCATED
            await _answer_error(reader, writer, *ANSWERS[self._mode], is_cut)
        else:
            to: Any = OnlyContinue(writer) if self._mode == UNANSWERED else writer
            await super().answer(reader, to)


async def _answer_error(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    status: str,
    body: str,
    is_cut: bool,
) -> None:
    """Reads the whole request first, so that the client gets the answer and no broken pipe."""
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
    writer.write(answer[: len(answer) // 2] if is_cut else answer)
    await writer.drain()
