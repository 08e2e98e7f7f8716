"""Translates TorchServe's rows and context to the contract and back.

The archive's entry makes its handler of `OffpathClassifier`, or of a custom subclass, by
`make_handler`.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from ts.context import Context
from ts.metrics.metric_cache_errors import MetricsCacheKeyError
from ts.metrics.metric_type_enum import MetricTypes
from ts.torch_handler.image_classifier import ImageClassifier

from offpath.handler.classifier import OffpathClassifier
from offpath.handler.contract import ArchiveContext, Reply, Request
from offpath.handler.latency import REQUEST_BUCKETS, STAGE_BUCKETS
from offpath.handler.metrics import Metrics
from offpath.handler.process.foreign_server import declares, warn_of_losses
from offpath.handler.process.sick_worker import EXIT_STATUS, end_after_reply
from offpath.handler.reply import encode_json
from offpath.handler.request.body_from_front_door import DoorBodies

PHRASES = {int(status): status.phrase for status in HTTPStatus}


class TorchServeHandler(ImageClassifier):
    """The methods that TorchServe calls; the other base class of a handler is its classifier."""

    health: str | None
    metrics: Metrics
    classify: Callable[[Sequence[Request]], list[Reply]]
    describe: Callable[[], dict[str, Any]]
    _door: DoorBodies | None

    def handle(self, data: Sequence[Mapping[str, Any]], context: Context) -> list[bytes]:
        """Answers one batch.

        Returns:
            one encoded JSON body per row. A bad item gets its own 4xx, and nothing raises, because
            TorchServe would answer 507.
        """
        connection: socket.socket | None = getattr(context, "cl_socket", None)
        if self.health is not None and connection is not None:
            # The thread that ends this process was late. A reply would only bring the next batch.
            os._exit(EXIT_STATUS)
        began_s = time.monotonic()
        headers = [context.get_all_request_header(idx) for idx in range(len(data))]
        texts = [read_headers(one) for one in headers]
        if self._door is not None:
            # A new dict, because TorchServe matches replies to requests by the old one
            # (ts/service.py).
            context.request_ids = {
                idx: self._door.find_id(one) or context.get_request_id(idx)
                for idx, one in enumerate(texts)
            }
        asked = [idx for idx, row in enumerate(data) if not self._is_description(row, texts[idx])]
        requests = [
            Request(data[idx], context.get_request_id(idx) or "", texts[idx]) for idx in asked
        ]
        answered = self.classify(requests) if requests else []
        replies = dict(zip(asked, answered))
        if self._door is None and connection is not None:
            # This is the first that we see of a request. A door counts its own.
            for reply in answered:
                self.metrics.count_requests(reply.status, time.monotonic() - began_s)
        if self.health is not None and connection is not None:
            end_after_reply(connection)
        return [
            send(context, idx, replies.get(idx) or encode_json(self.describe()), headers[idx])
            for idx in range(len(data))
        ]

    def _is_description(self, row: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
        """Tells whether TorchServe asks for a description; it queues that with the others.

        A client can send the header too, so it only counts on a request without parameters.
        """
        is_from_door = self._door is not None and self._door.has_sent(headers)
        return not row and headers.get("describe") == "True" and not is_from_door


def make_handler(classifier: type[OffpathClassifier]) -> type:
    """Makes a handler for TorchServe of a classifier, whose methods may be its user's."""

    class Handler(classifier, TorchServeHandler):  # type: ignore[misc, valid-type]
        def initialize(self, context: Context) -> None:
            quiet_worker_log()
            warn_of_losses(context.metrics)  # before ours are in the cache
            self._door = DoorBodies.from_environment()
            super().initialize(
                ArchiveContext(
                    context.model_name,
                    context.manifest,
                    context.model_yaml_config,
                    context.system_properties,
                    TorchServeMetrics(context.metrics),
                )
            )

    return Handler


def read_headers(headers: Mapping[str, Any]) -> dict[str, str]:
    """Returns a request's headers with names in lower case.

    ts/service.py puts the fields of a form among them, as dicts.
    """
    return {name.lower(): value for name, value in headers.items() if isinstance(value, str)}


def send(context: Context, idx: int, reply: Reply, headers: Mapping[str, Any]) -> bytes:
    """Sets the status and the headers of one reply, and returns its body."""
    context.set_response_status(reply.status, PHRASES.get(reply.status, ""), idx)
    for name, value in reply.headers.items():
        context.set_response_header(idx, name, value)
    if not any(isinstance(value, str) for value in headers.values()):
        # A request over gRPC, which has no text header. Java reads this one for StreamPredictions,
        # and stops the worker without it (GRPCJob.java).
        context.set_response_header(idx, "ts_stream_next", "false")
    return reply.body


def quiet_worker_log() -> None:
    """Turns off the worker's log line per batch, which Java would have to parse.

    The line is "Backend received inference at"; warnings, errors and metrics stay.
    """
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("ts.metrics.caching_metric").setLevel(logging.INFO)


class TorchServeMetrics:
    """Publishes metrics through TorchServe's cache, which prints lines that Java reads."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        # A server that does not declare them would log each of their many lines twice.
        self._is_dropped = (
            () if declares(cache, STAGE_BUCKETS) else (STAGE_BUCKETS, REQUEST_BUCKETS)
        )

    def __call__(
        self, name: str, value: float, is_counter: bool, labels: Mapping[str, str]
    ) -> None:
        if name in self._is_dropped:
            return
        kind = MetricTypes.COUNTER if is_counter else MetricTypes.GAUGE
        try:
            metric = self._cache.get_metric(name, kind)
        except MetricsCacheKeyError:
            metric = self._cache.add_metric_to_cache(name, "count", [*labels], kind)
        metric.add_or_update(value, [*labels.values()])
