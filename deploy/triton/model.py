"""The model.py of Triton's python backend: hands each request to the archive beside it.

https://github.com/triton-inference-server/python_backend: `execute` gets what the dynamic batcher
collected, one response for each request.
"""

from __future__ import annotations

import io
import json
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# Beside this file, in the repository's version folder.
sys.path.append(str(Path(__file__).parent))
from archived_handler import (  # type: ignore[import-not-found] # noqa: E402
    Answer,
    ArchivedHandler,
    Request,
)

ARCHIVE = "archive"
UNAVAILABLE = 503


class TritonPythonModel:
    """Classifies photographs, or a thin client's pixels."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Loads and warms up the archive's handler, once for each instance."""
        config = json.loads(args["model_config"])
        is_gpu = args["model_instance_kind"] == "GPU"
        self._handler = ArchivedHandler(
            Path(__file__).parent / ARCHIVE,
            batch_size=config["max_batch_size"],
            gpu=int(args["model_instance_device_id"]) if is_gpu else None,
            make_series=TritonSeries,
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answers a batch; a request may hold several pictures, and has one status for them."""
        pictures = [list(read_requests(request)) for request in requests]
        answers = iter(self._handler.handle([one for many in pictures for one in many]))
        return [make_response([next(answers) for _ in many]) for many in pictures]

    def finalize(self) -> None:
        """The model is unloaded, or the server ends."""
        self._handler.close()


def read_requests(request: Any) -> Iterator[Request]:
    """The pictures of a BYTES tensor [n, 1], or the pixels of a UINT8 tensor [n, size, size, 3]."""
    array = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
    # What `--http-header-forward-pattern` lets through.
    headers = {
        name: value
        for name, value in json.loads(request.parameters() or "{}").items()
        if isinstance(value, str)
    }
    request_id = request.request_id() or str(uuid.uuid4())
    for number, item in enumerate(array):
        own_id = request_id if len(array) == 1 else f"{request_id}-{number}"
        body = bytes(item[0]) if array.dtype == np.object_ else to_npy(item)
        yield Request(body, own_id, headers)


def to_npy(pixels: Any) -> bytes:
    """The file that a thin client would have sent."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ascontiguousarray(pixels), allow_pickle=False)
    return file.getvalue()


def make_response(answers: Sequence[Answer]) -> Any:
    """Labels and probabilities, best first, and each reply as TorchServe would have sent it.

    A picture with fewer labels than its neighbours in one request gets empty ones at the end.
    """
    failed = next((answer for answer in answers if answer.status != 200), None)
    if failed is not None:
        return pb_utils.InferenceResponse(error=make_error(failed))
    rows = [read_labels(answer.body) for answer in answers]
    width = max(map(len, rows))
    labels = np.full((len(rows), width), b"", dtype=np.object_)
    probabilities = np.zeros((len(rows), width), dtype=np.float32)
    for number, row in enumerate(rows):
        for place, (label, probability) in enumerate(row.items()):
            labels[number, place] = label.encode()
            probabilities[number, place] = probability
    replies = np.array([[answer.body] for answer in answers], dtype=np.object_)
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("LABEL", labels),
            pb_utils.Tensor("PROBABILITY", probabilities),
            pb_utils.Tensor("REPLY", replies),
        ]
    )


def read_labels(body: bytes) -> dict[str, float]:
    """Label -> probability; empty for the reply of a handler that answers something else."""
    reply = json.loads(body)
    is_plain = isinstance(reply, dict) and all(
        isinstance(value, (int, float)) for value in reply.values()
    )
    return reply if is_plain else {}


def make_error(answer: Answer) -> Any:
    """Triton has few codes: a client's fault is INVALID_ARG (400); the message is our reply."""
    code = pb_utils.TritonError.INTERNAL
    if answer.status == UNAVAILABLE:
        code = pb_utils.TritonError.UNAVAILABLE
    elif answer.status < 500:
        code = pb_utils.TritonError.INVALID_ARG
    return pb_utils.TritonError(answer.body.decode(), code)


class TritonSeries:
    """A metric on Triton's own /metrics page."""

    def __init__(self, name: str, labels: Sequence[str], is_counter: bool) -> None:
        self._is_counter = is_counter
        self._family = pb_utils.MetricFamily(
            name=name,
            description=f"{name}, see docs/reference.md",
            kind=(
                pb_utils.MetricFamily.COUNTER
                if is_counter
                else pb_utils.MetricFamily.GAUGE
            ),
        )
        self._metrics: dict[tuple[tuple[str, str], ...], Any] = {}

    def add(self, labels: Mapping[str, str], value: float) -> None:
        """Adds to a counter, or sets a gauge."""
        key = tuple(labels.items())
        if key not in self._metrics:
            self._metrics[key] = self._family.Metric(labels=dict(labels))
        metric = self._metrics[key]
        if self._is_counter:
            metric.increment(value)
        else:
            metric.set(value)
