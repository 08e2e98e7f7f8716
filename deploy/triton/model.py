"""Answers requests of Triton's python backend with the archive beside this file.

https://github.com/triton-inference-server/python_backend: `execute` receives the requests that the
dynamic batcher collected, and returns one response per request.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

FOLDER = Path(__file__).parent
# The repository's copy of our service, before an offpath that is installed.
sys.path.insert(0, str(FOLDER / "service"))
from offpath.handler.contract import Reply, Request  # noqa: E402
from offpath.serving.service.messages import WORDS, make_event_id  # noqa: E402
from offpath.serving.service.model_service import load_service  # noqa: E402

UNAVAILABLE = (503, 504)


class TritonPythonModel:
    """A model that classifies image files."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Loads and warms up the archive's handler; Triton calls this once per instance."""
        settings = json.loads((FOLDER / "settings.json").read_text(encoding="utf-8"))
        # Whoever runs Triton may have edited config.pbtxt.
        settings["batch_size"] = json.loads(args["model_config"])["max_batch_size"]
        is_gpu = args["model_instance_kind"] == "GPU"
        self._service = load_service(
            FOLDER / "archive",
            settings,
            gpu=int(args["model_instance_device_id"]) if is_gpu else None,
            publish=TritonMetrics(),
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answers a batch; a request may hold several images, and has one status for all."""
        images = [list(read_images(request)) for request in requests]
        replies = iter(self._service.answer_batch([one for many in images for one in many]))
        return [make_response([next(replies) for _ in many]) for many in images]

    def finalize(self) -> None:
        """Ends the handler; Triton calls this when it unloads the model or stops."""
        self._service.close()


def read_images(request: Any) -> Iterator[Request]:
    """Yields the files of a BYTES tensor [n, 1]."""
    array = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
    # Headers that `--http-header-forward-pattern` lets through.
    headers = {
        name.lower(): value
        for name, value in json.loads(request.parameters() or "{}").items()
        if isinstance(value, str) and name.lower() not in WORDS
    }
    request_id = make_event_id(request.request_id())
    for number, item in enumerate(array):
        own_id = request_id if len(array) == 1 else f"{request_id}-{number}"
        yield Request(bytes(item[0]), own_id, headers)


def make_response(replies: Sequence[Reply]) -> Any:
    """Makes a response with labels and probabilities, best first, and the replies of TorchServe.

    An image with fewer labels than its neighbours in one request gets empty ones at the end.
    """
    failed = next((reply for reply in replies if reply.status != 200), None)
    if failed is not None:
        return pb_utils.InferenceResponse(error=make_error(failed))
    rows = [read_labels(reply.body) for reply in replies]
    width = max(map(len, rows))
    labels = np.full((len(rows), width), b"", dtype=np.object_)
    probabilities = np.zeros((len(rows), width), dtype=np.float32)
    for number, row in enumerate(rows):
        for place, (label, probability) in enumerate(row.items()):
            labels[number, place] = label.encode()
            probabilities[number, place] = probability
    bodies = np.array([[reply.body] for reply in replies], dtype=np.object_)
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("LABEL", labels),
            pb_utils.Tensor("PROBABILITY", probabilities),
            pb_utils.Tensor("REPLY", bodies),
        ]
    )


def read_labels(body: bytes) -> dict[str, float]:
    """Reads label -> probability; returns an empty dict if a custom handler answers otherwise."""
    reply = json.loads(body)
    is_plain = isinstance(reply, dict) and all(
        isinstance(value, (int, float)) for value in reply.values()
    )
    return reply if is_plain else {}


def make_error(reply: Reply) -> Any:
    """Makes an error with our reply as its message; every 4xx becomes INVALID_ARG (400)."""
    code = pb_utils.TritonError.INTERNAL
    if reply.status in UNAVAILABLE:
        code = pb_utils.TritonError.UNAVAILABLE
    elif reply.status < 500:
        code = pb_utils.TritonError.INVALID_ARG
    return pb_utils.TritonError(reply.body.decode(), code)


class TritonMetrics:
    """Publishes the classifier's metrics on Triton's /metrics page."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}

    def __call__(
        self, name: str, value: float, is_counter: bool, labels: Mapping[str, str]
    ) -> None:
        if name not in self._families:
            self._families[name] = pb_utils.MetricFamily(
                name=name,
                description=f"{name}, see docs/reference.md",
                kind=(pb_utils.MetricFamily.COUNTER if is_counter else pb_utils.MetricFamily.GAUGE),
            )
        key = name, tuple(labels.items())
        if key not in self._metrics:
            self._metrics[key] = self._families[name].Metric(labels=dict(labels))
        if is_counter:
            self._metrics[key].increment(value)
        else:
            self._metrics[key].set(value)
