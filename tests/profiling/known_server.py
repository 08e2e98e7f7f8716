"""An HTTP server whose delays and failures are known: what the load generator reports of it can be
checked. Run as a script it serves until it is killed; its port is the first line on stdout.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class KnownServer(ThreadingHTTPServer):
    """Holds each request for the delay of its number, and fails every `fail_every`-th."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, delays_s: tuple[float, ...] = (0.0,), fail_every: int = 0
    ) -> None:
        super().__init__(("127.0.0.1", 0), KnownHandler)
        self.delays_s, self.fail_every = delays_s, fail_every
        self.lock = threading.Lock()
        self.requests = 0
        # What the server itself measured, in ms, of the requests answered with 200.
        self.held_ms: list[float] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/predictions/any"


class KnownHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: KnownServer

    def do_POST(self) -> None:
        start = time.perf_counter()
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.requests += 1
            number = self.server.requests
        time.sleep(self.server.delays_s[number % len(self.server.delays_s)])
        fails = self.server.fail_every and number % self.server.fail_every == 0
        body = json.dumps({"cat": 0.75}).encode()
        self.send_response(503 if fails else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if not fails:
            with self.server.lock:
                self.server.held_ms.append(1000 * (time.perf_counter() - start))

    def handle_one_request(self) -> None:
        # A client that stops in the middle of a request is how each load ends.
        with suppress(ConnectionError):
            super().handle_one_request()
            return
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@contextmanager
def known_server(
    delays_s: tuple[float, ...] = (0.0,), fail_every: int = 0
) -> Iterator[KnownServer]:
    server = KnownServer(delays_s, fail_every)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    alone = KnownServer((float(sys.argv[1]),))
    print(alone.url, flush=True)
    alone.serve_forever()
