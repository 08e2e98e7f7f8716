"""TorchServe's rows and context, as its worker passes them, become requests and replies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ts.context import Context, RequestProcessor

from offpath.archive.torchserve_metrics import make_default_metrics
from offpath.handler.classifier import OffpathClassifier
from offpath.handler.on_torchserve import make_handler
from tests.guarantees import guarantee
from tests.handler.conftest import make_context
from tests.support.photographs import encode, find_photograph

JPEG = encode(find_photograph("coffee").rgb, "JPEG")


class Counting(OffpathClassifier):
    """A custom handler with a hook of every kind."""

    def initialize(self, context: Any) -> None:
        super().initialize(context)
        self.calls: list[str] = []

    def handle(self, data: Any, context: Any) -> Any:
        self.calls.append("handle")
        return super().handle(data, context)  # type: ignore[misc]

    def preprocess(self, requests: Any) -> Any:
        self.calls.append("preprocess")
        return super().preprocess(requests)


@pytest.fixture(scope="module")
def context(model_dir: Path) -> Context:
    ours = make_context(model_dir, metrics_interval_s=3600, threads=1)
    metrics, config = make_default_metrics(), ours.model_yaml_config
    return Context(
        "near-free", str(model_dir), ours.manifest, 4, None, "0.12", True, metrics, config
    )


@pytest.fixture(scope="module")
def handler(loading: None, context: Context) -> Iterator[Any]:
    loaded = make_handler(Counting)()
    loaded.initialize(context)
    yield loaded
    loaded.close()


def handle(handler: Any, context: Context, *rows: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    """Passes rows with their headers; returns each status, parsed body and headers."""
    context.request_processor = [RequestProcessor(dict(headers)) for _, headers in rows]
    context.request_ids = {idx: f"id-{idx}" for idx in range(len(rows))}
    bodies = handler.handle([row for row, _ in rows], context)
    statuses = [context.get_response_status(idx)[0] for idx in range(len(rows))]
    headers = [context.get_response_headers(idx) for idx in range(len(rows))]
    return list(zip(statuses, map(json.loads, bodies), headers, strict=True))


def test_hooks_of_a_custom_handler_run_and_rows_get_their_replies(
    handler: Any, context: Context
) -> None:
    handler.calls.clear()
    good, bad = handle(handler, context, ({"body": JPEG}, {}), ({"data": b"junk"}, {"A": "b"}))
    assert handler.calls == ["handle", "preprocess"]
    assert (good[0], len(good[1]), bad[0]) == (200, 5, 415)
    assert good[2]["content-type"] == "application/json"
    assert re.match(r"read;dur=[0-9.]+, decode;dur=", good[2]["Server-Timing"])
    # Only the first came over gRPC.
    assert ("ts_stream_next" in good[2], "ts_stream_next" in bad[2]) == (True, False)


def test_a_description_is_answered_between_predictions(handler: Any, context: Context) -> None:
    rows = [({"body": JPEG}, {}), ({}, {"describe": "True"}), ({"body": b"junk"}, {})]
    good, described, bad = handle(handler, context, *rows)
    assert (good[0], described[0], bad[0]) == (200, 200, 415)
    assert described[1]["handler"] == "offpath"
    handler.calls.clear()
    ((status, _, _),) = handle(handler, context, ({}, {"describe": "True"}))
    assert status == 200 and handler.calls == ["handle"]  # no batch is counted


@guarantee("Forged headers, names and keys")
@pytest.mark.parametrize("body", [b"", b"junk"])
def test_a_client_that_asks_to_describe_a_prediction_gets_its_answer(
    handler: Any, context: Context, body: bytes
) -> None:
    asked = {"describe": "True"}
    bad, good = handle(handler, context, ({"body": body}, asked), ({"body": JPEG}, asked))
    assert bad[0] in (400, 415) and len(good[1]) == 5


def test_fields_of_a_form_among_the_headers_are_no_headers(handler: Any, context: Context) -> None:
    # ts/service.py puts them there.
    names = ("x-request-timeout-ms", "explain", "x-offpath-warm-up", "x-user-id", "traceparent")
    fields = {name: {"content-type": ""} for name in names}
    ((status, _, _),) = handle(handler, context, ({"data": JPEG}, fields))
    assert status == 200
