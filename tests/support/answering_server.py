"""A loopback HTTP server that gives the answers a test sets and keeps the requests it receives."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Answers:
    """The server's answer to every request, and the requests so far (path, headers, body).

    GET /ping gets 200 and is not among them, unless `respond` is there.

    Attributes:
        status: 0 closes the connection without an answer, -1 leaves it open without one.
        respond: computes status and body from path and body.
        endless: the bytes of the reply, those that follow for ever, and the seconds between them.
    """

    status: int = 200
    body: bytes = b'{"cat": 0.75, "dog": 0.25}'
    headers: dict[str, str] = field(default_factory=dict)
    respond: Callable[[str, bytes], tuple[int, bytes]] | None = None
    endless: tuple[bytes, bytes, float] | None = None
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""


class UnixServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", 0


@contextmanager
def answering_server(
    tls: tuple[Path, Path] | None = None, path: Path | None = None
) -> Iterator[Answers]:
    """Listens while the block runs, on a free port or a Unix socket.

    Args:
        tls: a certificate and its key.
        path: the Unix socket.
    """
    answers, silence = Answers(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {key.lower(): value for key, value in self.headers.items()}
            answers.requests.append((self.path, headers, body))
            status, reply = answers.status, answers.body
            if answers.respond is not None:
                status, reply = answers.respond(self.path, body)
            if status < 0:
                silence.wait()
                return
            if answers.endless is not None:
                reply, again, pause_s = answers.endless
                with suppress(OSError):  # the client has left
                    self.wfile.write(reply)
                    while not silence.wait(pause_s):
                        self.wfile.write(again)
            if status == 0 or answers.endless is not None:
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("content-length", str(len(reply)))
            for name, value in answers.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply)

        do_PUT = do_DELETE = do_POST

        def do_GET(self) -> None:
            if self.path != "/ping" or answers.respond is not None:
                return self.do_POST()
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = (
        ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if path is None
        else UnixServer(str(path), Handler)  # type: ignore[arg-type]
    )
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    answers.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield answers
    finally:
        silence.set()
        server.shutdown()
        server.server_close()
        thread.join()
