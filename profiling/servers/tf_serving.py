"""TensorFlow Serving over REST: one that runs already, or its binary where that is installed.

No package index has the binary, and it needs a SavedModel with the same weights, which we cannot
make without TensorFlow: the user brings both. docs/servers.md says what the model must look like.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.call import Call
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.sampling import Groups
from offpath.profiling.load.target import MAX_BATCH_DELAY_MS, RunningServer
from offpath.profiling.servers.adapter import THREADS, Adapter, Start
from offpath.profiling.servers.launched import is_ok

# Of the model: http://host:8501/v1/models/classifier
URL_VARIABLE = "OFFPATH_TF_SERVING_URL"
# The folder with the numbered versions, for the binary.
MODEL_VARIABLE = "OFFPATH_TF_SERVING_MODEL"
BINARY = "tensorflow_model_server"
MODEL = "classifier"
BATCHING_FILE = "batching.txt"
BATCHING = """\
max_batch_size {{ value: {batch_size} }}
batch_timeout_micros {{ value: {delay_us} }}
num_batch_threads {{ value: {cores} }}
max_enqueued_batches {{ value: 100 }}
"""


def wrap_file(content: bytes) -> bytes:
    """A predict request with one encoded picture."""
    picture = {"b64": base64.b64encode(content).decode()}
    return json.dumps({"instances": [picture]}).encode()


def read_predictions(reply: bytes, labels: Sequence[str]) -> dict[str, float]:
    """The one prediction, a probability for each class: label -> probability."""
    (probabilities,) = json.loads(reply)["predictions"]
    if len(probabilities) != len(labels):
        raise ValueError(f"expected {len(labels)} probabilities")
    return dict(zip(labels, map(float, probabilities)))


class RunningElsewhere:
    """A server that its owner runs: its processes are not seen."""

    def __init__(self, model_url: str) -> None:
        self._model_url = model_url
        self.predict_url = f"{model_url}:predict"

    def groups(self) -> Groups:
        """See `RunningServer`."""
        return {"frontend": []}

    def is_running(self) -> bool:
        """See `RunningServer`; the load counts what it does not answer."""
        return True

    def log_path(self) -> Path:
        """See `RunningServer`."""
        return Path(self._model_url)


class TfServing(Adapter):
    """The running server that the environment names, else the installed binary."""

    name = "tf-serving"
    environment = None
    ready_path = f"/v1/models/{MODEL}"
    predict_path = f"{ready_path}:predict"
    # One process, with threads.
    worker_mark = BINARY
    # The other is gRPC's.
    port_count = 2

    def __init__(self, model: ModelUnderTest, workers: int) -> None:
        super().__init__(model, workers)
        url = os.environ.get(URL_VARIABLE, "").rstrip("/").removesuffix(":predict")
        self._url = url
        self._saved_model = os.environ.get(MODEL_VARIABLE, "")

    @property
    def settings(self) -> dict[str, Any]:
        """See `ServerUnderTest`."""
        return {"started": "by its owner"} if self._url else super().settings

    def make_call(self) -> Call:
        """JSON with the picture in base64."""
        labels = self.model.labels
        return Call(
            headers={"Content-Type": "application/json"},
            wrap=wrap_file,
            read_reply=lambda reply: read_predictions(reply, labels),
        )

    def why_not(self) -> str | None:
        """See `ServerUnderTest`."""
        if self._url:
            return why_no_model(self._url)
        if shutil.which(BINARY) is None:
            return (
                f"no {BINARY} on PATH, and no package index has it: start one elsewhere and set"
                f" {URL_VARIABLE}=http://HOST:8501/v1/models/NAME (docs/servers.md)"
            )
        if not Path(self._saved_model or "/nowhere").is_dir():
            return (
                f"no SavedModel: set {MODEL_VARIABLE} to its folder (docs/servers.md)"
            )
        return None

    def build(self, folder: Path) -> None:
        """Writes the batching parameters."""
        parameters = BATCHING.format(
            batch_size=self.batch_size,
            delay_us=MAX_BATCH_DELAY_MS * 1000,
            cores=self.workers,
        )
        (folder / BATCHING_FILE).write_text(parameters)

    def running(self) -> AbstractContextManager[RunningServer]:
        """See `ServerUnderTest`."""
        return self._call_elsewhere() if self._url else super().running()

    @contextmanager
    def _call_elsewhere(self) -> Iterator[RunningServer]:
        problem = why_no_model(self._url)
        if problem:
            raise ExpectedError(f"server {self.name!r}: {problem}")
        yield RunningElsewhere(self._url)

    def make_command(self, start: Start) -> list[str]:
        """It has no option for the REST port's address and binds all of them."""
        port, grpc_port = start.ports
        return [
            BINARY,
            f"--rest_api_port={port}",
            f"--port={grpc_port}",
            f"--model_name={MODEL}",
            f"--model_base_path={self._saved_model}",
            "--enable_batching=true",
            f"--batching_parameters_file={start.folder / BATCHING_FILE}",
            f"--tensorflow_intra_op_parallelism={THREADS}",
            f"--tensorflow_inter_op_parallelism={self.workers}",
        ]


def why_no_model(url: str) -> str | None:
    """Why the model's status page is not there; None when it is."""
    try:
        is_there = is_ok(url)()
    except (httpx.TransportError, httpx.InvalidURL) as error:
        return f"no answer from {URL_VARIABLE}={url!r}: {error}"
    return None if is_there else f"{URL_VARIABLE}={url!r} is no model's status page"
