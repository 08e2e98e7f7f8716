"""Answers /metrics and TorchServe's read-only management calls for all workers of a server.

It runs in `offpath serve`, on the standard library's HTTP server: a few requests per minute, on a
private socket or from Prometheus.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import deque
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import BaseServer, ThreadingTCPServer, ThreadingUnixStreamServer
from typing import Any
from urllib.parse import unquote, urlsplit

from offpath.serving.granian.reports import Reports

# Idle clients then take neither the descriptors nor the threads of `offpath serve`.
MOST_CONNECTIONS = 32


class StatusPages:
    """Listens on Unix sockets and TCP ports until it is closed."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._servers: list[BaseServer] = []

    def open_socket(self, path: Path) -> None:
        """Answers everything on a Unix socket, which only this user can reach."""
        self._start(_UnixServer(str(path), partial(_Answer, self._reports, True)))
        path.chmod(0o600)

    def open_port(self, host: str, port: int) -> None:
        """Answers /metrics on a TCP port."""
        self._start(_TCPServer((host, port), partial(_Answer, self._reports, False)))

    def close(self) -> None:
        """Stops listening."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers = []

    def _start(self, server: BaseServer) -> None:
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()


def find_page(reports: Reports, path: str) -> object:
    """Returns what a management call is answered with; nothing for an unknown one."""
    match [unquote(part) for part in path.split("/")[1:]]:
        case ["models"]:
            return reports.list_models()
        case ["models", name]:
            return reports.describe(name, None)[:1]
        case ["models", name, version]:
            return reports.describe(name, None if version == "all" else version)
    return None


class _Answer(BaseHTTPRequestHandler):
    """One connection, which ends after its answer."""

    timeout = 10.0

    def __init__(self, reports: Reports, has_management: bool, *args: Any) -> None:
        self._reports, self._has_management = reports, has_management
        super().__init__(*args)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        text, status = json.dumps({"code": 404, "message": "no such page"}), 404
        if path == "/metrics":
            text, status = self._reports.format_metrics(), 200
        elif self._has_management:
            page = find_page(self._reports, path)
            text, status = (json.dumps(page), 200) if page else (text, status)
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes no line per request."""


class _Quiet(BaseServer):
    """Serves few connections at a time: a new one takes the place of the oldest."""

    daemon_threads = allow_reuse_address = True
    request_queue_size = 4 * MOST_CONNECTIONS

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: deque[socket.socket] = deque()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        if len(self._open) > MOST_CONNECTIONS:
            with contextlib.suppress(OSError):  # its thread has closed it
                self._open.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def handle_error(self, *_: object) -> None:
        """Prints no traceback for a client that has left."""


class _UnixServer(_Quiet, ThreadingUnixStreamServer):
    pass


class _TCPServer(_Quiet, ThreadingTCPServer):
    pass
