"""A collector that takes OTLP over HTTP as protobuf and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.eventually import eventually


class Collector:
    """The exports received so far.

    Attributes:
        url: value for `trace_endpoint`.
        resources: the attributes of each export's resource.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Span] = []
        self.resources: list[dict[str, str]] = []

    def take(self, body: bytes) -> None:
        """Takes one export."""
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            attributes = of_resource.resource.attributes
            self.resources.append({a.key: a.value.string_value for a in attributes})
            for of_scope in of_resource.scope_spans:
                self.spans.extend(of_scope.spans)

    def wait_for(self, is_found: Callable[[Span], bool], count: int = 1) -> list[Span]:
        """Waits until `count` such spans have arrived; the SDK exports every 5 s."""
        eventually(lambda: sum(map(is_found, self.spans)) >= count)
        return [span for span in self.spans if is_found(span)]


@contextmanager
def run_collector() -> Iterator[Collector]:
    """Runs a collector on loopback until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            is_traces = self.path == "/v1/traces"
            if is_traces:
                collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200 if is_traces else 404)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
