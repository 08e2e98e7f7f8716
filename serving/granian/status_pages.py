"""Answers /metrics and TorchServe's read-only management calls for all workers of a server.

It runs in `offpath serve`, on the standard library's HTTP server: a few requests per minute, on a
private socket or from Prometheus.
"""

from __future__ import annotations

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from offpath.serving.granian.reports import Reports


class StatusPages:
    """Listens on Unix sockets and TCP ports until it is closed."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._servers: list[socketserver.BaseServer] = []

    def open_socket(self, path: Path) -> None:
        """Answers everything on a Unix socket, which only this user can reach."""
        handler = self._make_handler(True)
        self._start(_UnixServer(str(path), handler))
        path.chmod(0o600)

    def open_port(self, host: str, port: int) -> None:
        """Answers /metrics on a TCP port."""
        self._start(_TCPServer((host, port), self._make_handler(False)))

    def close(self) -> None:
        """Stops listening."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers = []

    def _start(self, server: socketserver.BaseServer) -> None:
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def _make_handler(self, has_management: bool) -> type[BaseHTTPRequestHandler]:
        reports = self._reports

        class Handler(BaseHTTPRequestHandler):
            """One connection, which ends after its answer."""

            timeout = 10.0

            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                if path == "/metrics":
                    self._answer(
                        200, "text/plain; version=0.0.4", reports.format_metrics()
                    )
                    return
                found = find_page(reports, path) if has_management else None
                text = json.dumps(found or {"code": 404, "message": "no such page"})
                self._answer(200 if found else 404, "application/json", text)

            def _answer(self, status: int, content_type: str, text: str) -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Writes no line per request."""

        return Handler


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


class _UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Prints no traceback for a client that has left."""


class _TCPServer(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True

    def handle_error(self, *_: object) -> None:
        """Prints no traceback for a client that has left."""
