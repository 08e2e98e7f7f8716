"""A transport for httpx that ends a whole exchange in time; httpx's own time-outs are per read."""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

PIECE_BYTES = 1 << 16


class _Deadline(threading.local):
    end_s = math.inf


class DeadlineTransport(httpx.HTTPTransport):
    """Sends requests whose connection, sending and reply must end within the block of `within`."""

    def __init__(self, verify: bool | ssl.SSLContext) -> None:
        self._deadline = _Deadline()
        # httpx passes no network backend on, so the pool that it would make is replaced.
        self._pool = httpcore.ConnectionPool(
            httpx.create_ssl_context(verify=verify, trust_env=False),
            max_connections=None,
            network_backend=_Timed(httpcore.SyncBackend(), self._deadline),  # type: ignore
        )

    @contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """Sets the deadline of the requests that this thread sends in the block."""
        self._deadline.end_s = time.monotonic() + timeout_s
        try:
            yield
        finally:
            self._deadline.end_s = math.inf


class _Timed:
    """A network backend, or a stream of one, whose calls wait no longer than until a deadline."""

    def __init__(self, inner: Any, deadline: _Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*args: Any, **options: Any) -> Any:
            if "timeout" in options:
                options["timeout"] = self._deadline.end_s - time.monotonic()
                if options["timeout"] <= 0:
                    raise httpcore.ReadTimeout("timed out")
            done = method(*args, **options)
            return _Timed(done, self._deadline) if name in ("connect_tcp", "start_tls") else done

        return call

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # In pieces, because each of its sends would get the whole time.
        write = self.__getattr__("write")
        for start in range(0, len(buffer), PIECE_BYTES):
            write(buffer[start : start + PIECE_BYTES], timeout=timeout)
