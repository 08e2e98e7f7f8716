"""Spans as a real OTLP collector receives them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from offpath.handler.contract import Item, Request
from offpath.handler.stages import BatchTimings, Stage
from offpath.handler.tracing import Tracer
from tests.support.answering_server import Answers, answering_server

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}"


@pytest.fixture(scope="module")
def collector() -> Iterator[Answers]:
    """Runs a server that takes OTLP over HTTP as protobuf."""
    with answering_server() as answers:
        # An empty ExportTraceServiceResponse.
        answers.body, answers.headers = b"", {"content-type": "application/x-protobuf"}
        yield answers


def read_exports(collector: Answers) -> list[ResourceSpans]:
    assert {path for path, _, _ in collector.requests} <= {"/v1/traces"}
    parse = ExportTraceServiceRequest.FromString
    return [one for _, _, body in collector.requests for one in parse(body).resource_spans]


def trace(collector: Answers, share: float, *headers: dict[str, str]) -> list[Any]:
    """Returns the spans of one batch with 3 s of decoding and 2 s of inference."""
    timings = BatchTimings({Stage.DECODE: 3.0, Stage.INFERENCE: 2.0}, 6.0)
    tracer = Tracer(collector.url, share, "cats", "1.0")
    collector.requests.clear()
    requests = [Request(b"abc", f"id-{idx}", one) for idx, one in enumerate(headers)]
    tracer.trace([Item(one, payload=b"abc") for one in requests], timings, len(headers))
    tracer.close()
    scopes = [scope for one in read_exports(collector) for scope in one.scope_spans]
    return [span for scope in scopes for span in scope.spans]


def test_request_span_has_stages_as_children_and_a_link_to_its_batch(collector: Answers) -> None:
    batch, decode, inference, request = trace(collector, 1.0, {})
    assert [batch.name, decode.name, inference.name] == ["batch", "decode", "inference"]
    assert request.name == "classify cats"
    assert request.parent_span_id == b""
    assert [link.span_id for link in request.links] == [batch.span_id]
    assert {decode.parent_span_id, inference.parent_span_id} == {request.span_id}
    length = request.end_time_unix_nano - request.start_time_unix_nano
    assert length == 6_000_000_000
    assert decode.start_time_unix_nano == request.start_time_unix_nano
    assert decode.end_time_unix_nano == inference.start_time_unix_nano
    assert abs(time.time_ns() - request.end_time_unix_nano) < 3600e9
    said = {a.key: a.value.int_value or a.value.string_value for a in request.attributes}
    assert said == {
        "http.response.status_code": 200,
        "offpath.request_id": "id-0",
        "offpath.batch_size": 1,
        "offpath.payload_bytes": 3,
    }
    attributes = read_exports(collector)[-1].resource.attributes
    resource = {one.key: one.value.string_value for one in attributes}
    assert (resource["service.name"], resource["offpath.model"]) == ("offpath", "cats")


def test_traceparent_is_continued_by_its_flags(collector: Answers) -> None:
    sampled = {"traceparent": PARENT.format(flags="01"), "tracestate": "a=b"}
    not_sampled = {"traceparent": PARENT.format(flags="00")}
    broken = {"traceparent": "00-nonsense"}
    spans = trace(collector, 0.0, not_sampled, sampled, {}, broken)
    (request,) = (span for span in spans if span.name.startswith("classify"))
    assert request.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert request.parent_span_id.hex() == "b7ad6b7169203331"
    assert request.trace_state == "a=b"
    assert trace(collector, 1.0, not_sampled) == []
    assert len(trace(collector, 1.0, broken)) == 4
