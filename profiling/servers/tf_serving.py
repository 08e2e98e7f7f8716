"""TensorFlow Serving over REST, run by its owner and named by OFFPATH_TF_SERVING_URL.

No package index has the binary, and it needs a SavedModel with the same weights, which we cannot
make without TensorFlow. So the user brings both; docs/servers.md describes the model.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from offpath.errors import ExpectedError
from offpath.profiling.load.call import Call
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.window import Groups
from offpath.profiling.servers.adapter import BATCH_SIZE, Adapter
from offpath.profiling.servers.server_process import is_ok

# Variable with the model's address: http://host:8501/v1/models/classifier
URL_VARIABLE = "OFFPATH_TF_SERVING_URL"


def wrap_file(content: bytes) -> bytes:
    image = {"b64": base64.b64encode(content).decode()}
    return json.dumps({"instances": [image]}).encode()


def read_predictions(reply: bytes, labels: Sequence[str]) -> dict[str, float]:
    """Reads the one prediction, a probability per class, as label -> probability."""
    (probabilities,) = json.loads(reply)["predictions"]
    if len(probabilities) != len(labels):
        raise ValueError(f"expected {len(labels)} probabilities")
    return dict(zip(labels, map(float, probabilities)))


class RunningTfServing:
    """A TensorFlow Serving that answers; its processes are unknown."""

    def __init__(self, model_url: str) -> None:
        self._model_url = model_url
        self.predict_url = f"{model_url}:predict"

    def groups(self) -> Groups:
        return {"frontend": []}

    def is_running(self) -> bool:
        # The load counts the requests that it does not answer.
        return True

    def log_path(self) -> Path:
        return Path(self._model_url)


class TfServing(Adapter):
    """The TensorFlow Serving that the environment names."""

    name = "tf-serving"

    def __init__(self, model: ModelUnderTest, workers: int) -> None:
        url = os.environ.get(URL_VARIABLE, "").rstrip("/").removesuffix(":predict")
        self._url = url
        # Its owner sets the batch size.
        self.batch_size = BATCH_SIZE
        self.call = Call(
            headers={"Content-Type": "application/json"},
            wrap=wrap_file,
            read_reply=lambda reply: read_predictions(reply, model.labels),
        )

    @property
    def settings(self) -> dict[str, Any]:
        return {"started": "by its owner"}

    def why_not(self) -> str | None:
        if not self._url:
            return (
                "no package index has it: start one and set"
                f" {URL_VARIABLE}=http://HOST:8501/v1/models/NAME (docs/servers.md)"
            )
        try:
            is_there = is_ok(self._url)()
        except (httpx.TransportError, httpx.InvalidURL) as error:
            return f"no answer from {URL_VARIABLE}={self._url!r}: {error}"
        if is_there:
            return None
        return f"{URL_VARIABLE}={self._url!r} is no model's status page"

    @contextmanager
    def running(self) -> Iterator[RunningTfServing]:
        problem = self.why_not()
        if problem:
            raise ExpectedError(f"server {self.name!r}: {problem}")
        yield RunningTfServing(self._url)
