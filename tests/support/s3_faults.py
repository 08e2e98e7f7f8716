"""A proxy in front of an S3 server that imitates the outages an S3 client meets."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import suppress
from socketserver import ThreadingTCPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

PASS, UNANSWERED, REFUSED, HANGING = "pass", "unanswered", "refused", "hanging"
# Mode -> status with further headers, and S3's code of the error or the whole body.
ANSWERS = {
    "slow-down": ("503 Service Unavailable", "SlowDown"),
    "denied": ("403 Forbidden", "AccessDenied"),
    "expired credentials": ("400 Bad Request", "ExpiredToken"),
    "wrong clock": ("403 Forbidden", "RequestTimeTooSkewed"),
    "slow upload": ("400 Bad Request", "RequestTimeout"),
    "damaged body": ("400 Bad Request", "BadDigest"),
    "another region": (
        "301 Moved Permanently\r\nx-amz-bucket-region: eu-central-1",
        "PermanentRedirect",
    ),
    "no checksums": ("400 Bad Request", "InvalidArgument"),
    "redirected": ("307 Temporary Redirect\r\nLocation: http://127.0.0.1:9/other", ""),
    "login page": ("200 OK", "<html>Please log in.</html>"),
    "truncated": ("200 OK", ""),
}
OUTAGES = (REFUSED, "slow-down", HANGING, "denied")
# Wrong answers, which are not outages.
WRONG = tuple(mode for mode in ANSWERS if mode not in OUTAGES)
ETAG = re.compile(rb'(?i)(?<=\netag: ")[0-9a-f]{32}')


class Server(ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 100


class FaultProxy:
    """Passes bytes through, refuses connections, answers with errors, or never answers.

    Signatures stay valid, because the client signs for the proxy's address. UNANSWERED passes
    requests through, but not their answers.

    Args:
        has_kms: the ETags of answers are those of a bucket that S3 encrypts by KMS, which are not
            the MD5 of an object.
    """

    def __init__(self, upstream_url: str, has_kms: bool = False) -> None:
        parts = urlsplit(upstream_url)
        self.upstream, self.has_kms = (parts.hostname, parts.port), has_kms
        self.mode, self._port = PASS, 0
        self._server: ThreadingTCPServer | None = None
        self.connections: set[socket.socket] = set()

    @property
    def endpoint_url(self) -> str:
        """The address of the proxy."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> FaultProxy:
        self.set_mode(PASS)
        return self

    def __exit__(self, *_: object) -> None:
        self.set_mode(REFUSED)

    def set_mode(self, mode: str) -> None:
        """Changes the mode and closes open connections; the port stays the same."""
        self.mode = mode
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if mode != REFUSED:
            self._server = Server(("127.0.0.1", self._port), self._serve)  # type: ignore[arg-type]
            self._port = self._server.server_address[1]
            Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def _serve(self, connection: socket.socket, *_: Any) -> None:
        """Serves one connection as the mode says."""
        self.connections.add(connection)
        with suppress(OSError):  # it was closed meanwhile
            if self.mode in (PASS, UNANSWERED):
                with socket.create_connection(self.upstream) as upstream:
                    answer = Thread(target=pump, args=(upstream, connection, self._change))
                    answer.start()
                    pump(connection, upstream)
                    answer.join()
            elif self.mode in ANSWERS:
                connection.recv(1 << 16)
                connection.sendall(format_answer(self.mode))
                connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass

    def _change(self, answer: bytes) -> bytes:
        if self.mode == UNANSWERED and not answer.startswith(b"HTTP/1.1 100 "):
            return b""
        return ETAG.sub(b"0" * 32, answer) if self.has_kms else answer


def format_answer(mode: str) -> bytes:
    status, text = ANSWERS[mode]
    text = f"<Error><Code>{text}</Code></Error>" if text.isalpha() else text
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    answer = (head + text).encode()
    return answer[: len(answer) // 2] if mode == "truncated" else answer


def pump(
    source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes] = bytes
) -> None:
    """Passes bytes on until their sender has no more."""
    with suppress(OSError):
        while part := source.recv(1 << 16):
            target.sendall(change(part))
        target.shutdown(socket.SHUT_WR)
