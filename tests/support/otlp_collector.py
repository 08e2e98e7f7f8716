"""A collector that takes OTLP over HTTP as protobuf and keeps the spans."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from tests.support.answering_server import Answers, answering_server


class Collector:
    """The exports received so far.

    Attributes:
        url: value for `trace_endpoint`.
    """

    def __init__(self, answers: Answers) -> None:
        self.url = answers.url
        self._answers = answers

    def _exports(self) -> list[ResourceSpans]:
        found = []
        for path, headers, body in list(self._answers.requests):
            if path == "/v1/traces":
                plain = gzip.decompress(body) if headers.get("content-encoding") else body
                found.extend(ExportTraceServiceRequest.FromString(plain).resource_spans)
        return found

    @property
    def spans(self) -> list[Span]:
        """All spans."""
        return [
            span for one in self._exports() for scope in one.scope_spans for span in scope.spans
        ]

    @property
    def resources(self) -> list[dict[str, str]]:
        """The attributes of each export's resource."""
        every = [one.resource.attributes for one in self._exports()]
        return [{one.key: one.value.string_value for one in attributes} for attributes in every]


@contextmanager
def run_collector() -> Iterator[Collector]:
    """Runs a collector on loopback until the block ends."""
    with answering_server() as answers:
        # An empty ExportTraceServiceResponse.
        answers.body, answers.headers = b"", {"content-type": "application/x-protobuf"}
        yield Collector(answers)
