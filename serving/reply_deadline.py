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


class DeadlineTransport(httpx.HTTPTransport):
    """Sends requests whose connection, sending and reply must end within the block of `within`."""

    def __init__(self, verify: bool | ssl.SSLContext) -> None:
        context = httpx.create_ssl_context(verify=verify, trust_env=False)
        self._deadline = _Deadline()
        # httpx has no argument for the backend, and replaces nothing else of its own pool here.
        self._pool = httpcore.ConnectionPool(
            context, max_connections=None, network_backend=_Backend(self._deadline)
        )

    @contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """Sets the deadline of the requests that this thread sends in the block."""
        self._deadline.end_s = time.monotonic() + timeout_s
        try:
            yield
        finally:
            self._deadline.end_s = math.inf


class _Deadline(threading.local):
    end_s = math.inf

    def limit(self, timeout_s: float | None) -> float | None:
        """Returns a time-out that is not later than the deadline."""
        left_s = self.end_s - time.monotonic()
        if left_s <= 0:
            raise httpcore.ReadTimeout("the whole reply did not arrive in time")
        return left_s if timeout_s is None else min(left_s, timeout_s)


class _Backend(httpcore.SyncBackend):
    def __init__(self, deadline: _Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        options["timeout"] = self._deadline.limit(options.get("timeout"))
        return _Stream(super().connect_tcp(*args, **options), self._deadline)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._stream, self._deadline = stream, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.limit(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # In pieces, because each of its sends would get the whole time.
        for start in range(0, len(buffer), PIECE_BYTES):
            piece = buffer[start : start + PIECE_BYTES]
            self._stream.write(piece, self._deadline.limit(timeout))

    def start_tls(self, *args: Any, **options: Any) -> httpcore.NetworkStream:
        options["timeout"] = self._deadline.limit(options.get("timeout"))
        return _Stream(self._stream.start_tls(*args, **options), self._deadline)

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
