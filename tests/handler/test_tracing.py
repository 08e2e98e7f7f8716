"""Spans as a real OTLP collector receives them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from offpath.handler.contract import Item, Request
from offpath.handler.stages import BatchTimings, Stage
from offpath.handler.tracing import Tracer
from tests.support.otlp_collector import Collector, run_collector

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with run_collector() as running:
        yield running


def trace(collector: Collector, share: float, *headers: dict[str, str]) -> list[Any]:
    """Returns the spans of one batch with 3 s of decoding and 2 s of inference."""
    timings = BatchTimings({Stage.DECODE: 3.0, Stage.INFERENCE: 2.0}, 6.0)
    tracer = Tracer(collector.url, share, "cats", "1.0")
    before = len(collector.spans)
    requests = [Request(b"abc", f"id-{idx}", one) for idx, one in enumerate(headers)]
    tracer.trace([Item(one, payload=b"abc") for one in requests], timings, len(headers))
    tracer.close()
    return collector.spans[before:]


def test_request_span_has_stages_as_children_and_a_link_to_its_batch(collector: Collector) -> None:
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
    assert collector.resources[-1]["service.name"] == "offpath"
    assert collector.resources[-1]["offpath.model"] == "cats"


def test_traceparent_is_continued_by_its_flags(collector: Collector) -> None:
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
