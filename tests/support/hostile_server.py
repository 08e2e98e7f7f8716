"""A loopback server that answers each request with bytes of its own, however wrong and slow."""

from __future__ import annotations

import gzip
import itertools
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
# More than any test waits.
LONG_S = 60.0


def drip(text: bytes, before: bytes = b"") -> Iterator[bytes]:
    """Yields `before`, and then for ever a little of a text."""
    yield before
    yield from itertools.repeat(text)


def with_length(body: bytes, *headers: bytes) -> bytes:
    return (
        HEAD
        + b"".join(b"%s\r\n" % one for one in headers)
        + (b"content-length: %d\r\n\r\n%s" % (len(body), body))
    )


BOMB = gzip.compress(bytes(1 << 28))
# Name -> the pieces of a reply, and the seconds between two of them.
HOSTILE_REPLIES: dict[str, tuple[Iterable[bytes], float]] = {
    "dripping-body": (drip(b"1\r\n[\r\n", HEAD + b"transfer-encoding: chunked\r\n\r\n"), 0.05),
    "dripping-headers": (drip(b"a", b"HTTP/1.1 200 OK\r\nx-a: "), 0.05),
    "endless-informational": (drip(b"HTTP/1.1 102 Processing\r\n\r\n"), 0.05),
    "endless-body": (
        drip(b"10000\r\n%s\r\n" % (b"[" * 65536), HEAD + b"transfer-encoding: chunked\r\n\r\n"),
        0.0,
    ),
    "gzip-bomb": ([with_length(BOMB, b"content-encoding: gzip")], 0.0),
}


@contextmanager
def hostile_server(pieces: Iterable[bytes], pause_s: float = 0.0) -> Iterator[str]:
    """Yields the URL of a server that answers every request with these pieces."""
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            received = connection.recv(1 << 20)
            while b"\r\n\r\n" not in received:
                received += connection.recv(1 << 20)
            for piece in pieces:
                connection.sendall(piece)
                if ended.wait(pause_s):
                    return
            ended.wait(LONG_S)

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
