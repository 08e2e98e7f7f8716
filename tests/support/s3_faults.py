"""A proxy in front of an S3 server that imitates the outages an S3 client meets."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

PASS, UNANSWERED, REFUSED = "pass", "unanswered", "refused"
SLOW_DOWN, HANGING, DENIED = "slow-down", "hanging", "denied"
OUTAGES = (REFUSED, SLOW_DOWN, HANGING, DENIED)
EXPIRED, REDIRECTED = "expired credentials", "redirected"
LOGIN_PAGE, TRUNCATED = "login page", "truncated"
SKEWED, TIMED_OUT, DAMAGED = "wrong clock", "slow upload", "damaged body"
MOVED, NO_CHECKSUMS = "another region", "no checksums"
# An ETag of an object that S3 has encrypted by KMS is not its MD5.
KMS_ETAG = f'"{"0" * 32}"'


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

    An HTTP proxy on loopback. Heads and bodies pass unchanged, so signatures stay valid: the client
    signs for the proxy's address. UNANSWERED passes requests through, but not their answers.

    Args:
        has_kms: the ETags of answers are those of a bucket that S3 encrypts by KMS.
    """

    def __init__(self, upstream_url: str, has_kms: bool = False) -> None:
        self.upstream, self.has_kms = urlsplit(upstream_url).netloc, has_kms
        self.mode, self._port = PASS, 0
        self._server: ThreadingHTTPServer | None = None
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
            self._server = ThreadingHTTPServer(("127.0.0.1", self._port), partial(Handler, self))
            self._port = self._server.server_port
            threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    """Serves one connection as the proxy's mode says."""

    protocol_version = "HTTP/1.1"

    def __init__(self, proxy: FaultProxy, *connection: Any) -> None:
        self._proxy = proxy
        with suppress(OSError, HTTPException):  # a connection that was closed meanwhile
            super().__init__(*connection)

    def setup(self) -> None:
        super().setup()
        self._proxy.connections.add(self.connection)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        mode = self._proxy.mode
        if mode in ANSWERS:
            status, text = ANSWERS[mode]
            head = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            answer = (head + text).encode()
            self.wfile.write(answer[: len(answer) // 2] if mode == TRUNCATED else answer)
            self.close_connection = True
        elif mode == HANGING:
            self.rfile.read(1)
        else:
            self._pass_on(body, is_answered=mode != UNANSWERED)

    do_GET = do_POST = do_HEAD = do_DELETE = do_PUT

    def _pass_on(self, body: bytes, is_answered: bool) -> None:
        del self.headers["expect"]  # it is answered
        upstream = HTTPConnection(self._proxy.upstream)
        upstream.request(self.command, self.path, body, dict(self.headers))
        reply = upstream.getresponse()
        content = reply.read()
        upstream.close()
        if not is_answered:
            self.rfile.read(1)
            return
        if self._proxy.has_kms and "etag" in reply.headers:
            reply.headers.replace_header("etag", KMS_ETAG)
        if self.command != "HEAD":
            del reply.headers["transfer-encoding"], reply.headers["content-length"]
            reply.headers["content-length"] = str(len(content))
        self.send_response_only(reply.status, reply.reason)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
