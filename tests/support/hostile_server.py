"""A loopback server that answers each request with bytes of its own, however wrong and slow."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.answering_server import answering_server

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
# More than any test waits.
LONG_S = 60.0


def with_length(body: bytes, *headers: bytes) -> bytes:
    return (
        HEAD
        + b"".join(b"%s\r\n" % one for one in headers)
        + (b"content-length: %d\r\n\r\n%s" % (len(body), body))
    )


BOMB = gzip.compress(bytes(1 << 28))
LATE = "timed out|it took longer than"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
CHUNK = b"10000\r\n%s\r\n" % (b"[" * 65536)
# Name -> how a reply begins, what follows for ever, the seconds between, and what a client says.
HOSTILE_REPLIES: dict[str, tuple[bytes, bytes, float, str]] = {
    "dripping-body": (CHUNKED, b"1\r\n[\r\n", 0.05, LATE),
    "dripping-headers": (b"HTTP/1.1 200 OK\r\nx-a: ", b"a", 0.05, LATE),
    "endless-informational": (b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.05, LATE),
    "endless-body": (CHUNKED, CHUNK, 0.0, "the reply has more than"),
    "gzip-bomb": (with_length(BOMB, b"content-encoding: gzip"), b"", 0.0, "is compressed"),
}


@contextmanager
def hostile_server(reply: bytes, again: bytes = b"", pause_s: float = 0.0) -> Iterator[str]:
    """Yields the URL of a server whose every reply begins with `reply`, and `again` for ever."""
    with answering_server() as answers:
        answers.endless = (reply, again, pause_s if again else LONG_S)
        yield answers.url
