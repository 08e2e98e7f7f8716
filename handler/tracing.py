"""Sends OpenTelemetry spans: one per traced request, with its stages as children.

Requests are traced if their `traceparent` says sampled; of the requests without a `traceparent` a
configured share is traced. A batch is traced after it was answered, from its timer, so a request
that is not traced costs only the look at one header. A thread of the SDK exports by OTLP/HTTP. It
drops spans that the collector does not take; no request waits.

The stages of a batch run interleaved. Their spans have the true lengths, laid end to end.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping, Sequence

try:
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import (
        Link,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        get_current_span,
        set_span_in_context,
    )
    from opentelemetry.trace.propagation.tracecontext import (
        TraceContextTextMapPropagator,
    )
except ImportError as error:
    raise ImportError(
        f"handler.trace_endpoint needs a package that is missing ({error}): "
        "pip install 'torchserve-offpath[otel]'"
    ) from error

from offpath.handler.contract import Item
from offpath.handler.stages import BatchTimings

TRACES_PATH = "/v1/traces"
# https://www.w3.org/TR/trace-context/
TRACE_HEADERS = ("traceparent", "tracestate")
# An empty context: a span that starts in it has no parent.
ROOT = Context()


class Tracer:
    """Traces the batches of one worker.

    Args:
        endpoint: URL of the collector, for instance `http://host:4318`.
        share: share of the requests without a `traceparent` that are traced, in [0, 1].
        model, version: attributes of every span's resource, besides OTEL_RESOURCE_ATTRIBUTES and
            OTEL_SERVICE_NAME.
    """

    def __init__(self, endpoint: str, share: float, model: str, version: str) -> None:
        self._model = model
        name = os.environ.get("OTEL_SERVICE_NAME", "offpath")
        attributes = {"service.name": name, "offpath.model": model, "service.version": version}
        resource = Resource.create(attributes)
        self._provider = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(endpoint.rstrip("/") + TRACES_PATH)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("offpath.handler")
        self._propagator = TraceContextTextMapPropagator()
        self._share = share

    def trace(self, items: Sequence[Item], timings: BatchTimings, size: int) -> None:
        """Makes the spans of items that were answered just now, in a batch of `size`."""
        parents = ((item, self._choose(item.request.headers)) for item in items)
        chosen = [(item, parent) for item, parent in parents if parent is not None]
        if not chosen:
            return
        end_ns = time.time_ns()
        begin_ns = end_ns - int(timings.total_s * 1e9)
        batch_span = self._tracer.start_span(
            "batch", ROOT, start_time=begin_ns, attributes={"offpath.batch_size": size}
        )
        batch_span.end(end_ns)
        link = Link(batch_span.get_span_context())
        for item, parent in chosen:
            span = self._tracer.start_span(
                f"classify {self._model}",
                parent,
                SpanKind.SERVER,
                describe(item, size),
                [link],
                begin_ns,
            )
            if item.error is not None and item.status >= 500:
                span.set_status(Status(StatusCode.ERROR, item.error.type))
            self._add_stages(set_span_in_context(span), timings, begin_ns)
            span.end(end_ns)

    def close(self) -> None:
        self._provider.shutdown()

    def _choose(self, headers: Mapping[str, str]) -> Context | None:
        """Returns the parent of a request's span; None if the request is not traced."""
        if "traceparent" in headers:
            found = {name: headers[name] for name in TRACE_HEADERS if name in headers}
            parent = self._propagator.extract(found, ROOT)
            client_span: SpanContext = get_current_span(parent).get_span_context()
            if client_span.is_valid:
                return parent if client_span.trace_flags.sampled else None
        return ROOT if random.random() < self._share else None

    def _add_stages(self, parent: Context, timings: BatchTimings, begin_ns: int) -> None:
        for stage, seconds in timings.seconds.items():
            if seconds > 0:
                child = self._tracer.start_span(stage.value, parent, start_time=begin_ns)
                begin_ns += int(seconds * 1e9)
                child.end(begin_ns)


def describe(item: Item, size: int) -> dict[str, str | int]:
    """Returns a request's attributes, which never include text from its client."""
    described: dict[str, str | int] = {
        "http.response.status_code": item.status,
        "offpath.request_id": item.request.id,
        "offpath.batch_size": size,
        "offpath.payload_bytes": len(item.payload or b""),
    }
    if item.error is not None:
        described["error.type"] = item.error.type
    return described
