"""Small HTTP pages of `offpath serve`: /metrics for Prometheus, and states of a server.

They run on the standard library's HTTP server, for a few requests per minute.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseServer, ThreadingTCPServer, ThreadingUnixStreamServer
from typing import Any
from urllib.parse import urlsplit

from offpath.serving.process.ports import is_loopback, may_be_host

# Idle clients then take neither the descriptors nor the threads of `offpath serve`.
MAX_CONNECTIONS = 32
TEXT = "text/plain; version=0.0.4; charset=utf-8"
Find = Callable[[str, bool], object]


def make_error(status: int, kind: str, message: str) -> tuple[dict[str, object], int]:
    """Makes an error in the form of TorchServe's management API, with its status."""
    return {"code": status, "type": kind, "message": message}, status


class StatusPages:
    """Listens on Unix sockets and TCP ports until it is closed.

    `find` gets a path, and whether it came over a private socket; it returns text, or what becomes
    JSON, or nothing for an unknown page.
    """

    def __init__(self, find: Find) -> None:
        self._find = find
        self._listeners: list[BaseServer] = []

    def open_socket(self, path: Path) -> None:
        """Answers everything on a Unix socket, which only this user can reach."""
        self._start(_UnixServer(str(path), partial(_Answer, self._find, True)))
        path.chmod(0o600)

    def open_port(self, host: str, port: int, is_private: bool = False) -> None:
        answer = _LocalAnswer if is_loopback(host) else _Answer
        self._start(_TCPServer((host, port), partial(answer, self._find, is_private)))

    def close(self) -> None:
        for listener in self._listeners:
            listener.shutdown()
            listener.server_close()
        self._listeners = []

    def _start(self, listener: BaseServer) -> None:
        # First, because `close` would wait for ever for a thread that could not be started.
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        self._listeners.append(listener)


class _Answer(BaseHTTPRequestHandler):
    """One connection, which ends after its answer."""

    timeout = 10.0

    def __init__(self, find: Find, is_private: bool, *args: Any) -> None:
        self._find, self._is_private = find, is_private
        super().__init__(*args)

    def do_GET(self) -> None:
        page, status = self._find(urlsplit(self.path).path, self._is_private), 200
        if not page:
            page, status = make_error(404, "ResourceNotFoundException", "no such page or model")
        self._send(page, status)

    def refuse(self) -> None:
        """Answers what would change a model."""
        why = "nothing here can be changed over HTTP; use `offpath reload`"
        self._send(*make_error(405, "MethodNotAllowedException", why))

    do_POST = do_PUT = do_DELETE = refuse

    def _send(self, page: object, status: int) -> None:
        # Prometheus 3 reads no page without a type.
        kind = TEXT if isinstance(page, str) else "application/json"
        body = (page if isinstance(page, str) else json.dumps(page)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes no line per request."""


class _LocalAnswer(_Answer):
    """A connection to loopback, where a web page whose name leads there gets nothing."""

    def do_GET(self) -> None:
        if may_be_host(self.headers.get("Host", "localhost")):
            return super().do_GET()
        why = "only names of loopback are answered here"
        self._send(*make_error(403, "ForbiddenException", why))


class _Quiet(BaseServer):
    """Serves few connections at a time: a new one takes the place of the oldest."""

    daemon_threads = allow_reuse_address = True
    request_queue_size = 4 * MAX_CONNECTIONS

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: deque[socket.socket] = deque()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        if len(self._open) > MAX_CONNECTIONS:
            with contextlib.suppress(OSError):  # its thread has closed it
                self._open.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def handle_error(self, *_: object) -> None:
        """Prints no traceback for a client that has left."""


class _UnixServer(_Quiet, ThreadingUnixStreamServer):
    pass


class _TCPServer(_Quiet, ThreadingTCPServer):
    pass
