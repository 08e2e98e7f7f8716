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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.call import Call
from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.load.sampling import Groups
from offpath.profiling.load.target import BATCH_SIZE, MAX_BATCH_DELAY_MS
from offpath.profiling.servers.launched import Launch, ServerProcess, is_ok, launched
from offpath.serving.ports import resolve_ports

# Of the model: http://host:8501/v1/models/classifier
URL_VARIABLE = "OFFPATH_TF_SERVING_URL"
# The folder with the numbered versions, for the binary.
MODEL_VARIABLE = "OFFPATH_TF_SERVING_MODEL"
BINARY = "tensorflow_model_server"
NAME = "classifier"
LOOPBACK = "127.0.0.1"
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


class RunningTfServing:
    """A server that answers; `process` is None for one that runs elsewhere, unseen."""

    def __init__(self, model_url: str, process: ServerProcess | None) -> None:
        self._model_url, self._process = model_url, process
        self.predict_url = f"{model_url}:predict"

    def groups(self) -> Groups:
        """See `RunningServer`; empty for one that we did not start."""
        return {"frontend": [self._process.pid] if self._process else []}

    def is_running(self) -> bool:
        """See `RunningServer`; the load counts what another's server does not answer."""
        return self._process is None or self._process.is_running()

    def log_path(self) -> Path:
        """See `RunningServer`."""
        return self._process.launch.log if self._process else Path(self._model_url)


@dataclass
class TfServingUnderTest:
    """TensorFlow Serving with the user's SavedModel.

    Attributes:
        url: of the model on a running server; None starts the binary.
        saved_model: for the binary.
    """

    call: Call
    cores: int
    url: str | None
    saved_model: str | None
    name: str = "tf-serving"
    batch_size: int = BATCH_SIZE
    _folder: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """See `ServerUnderTest`."""
        if self.url:
            return {"started": "by its owner"}
        return {
            "started": BINARY,
            "max_batch_size": self.batch_size,
            "batch_timeout_micros": MAX_BATCH_DELAY_MS * 1000,
            "num_batch_threads": self.cores,
            "threads": 1,
        }

    def why_not(self) -> str | None:
        """See `ServerUnderTest`."""
        if self.url:
            return why_no_model(self.url)
        if shutil.which(BINARY) is None:
            return (
                f"no {BINARY} on PATH, and no package index has it: start one elsewhere and set"
                f" {URL_VARIABLE}=http://HOST:8501/v1/models/NAME (docs/servers.md)"
            )
        if not self.saved_model or not Path(self.saved_model).is_dir():
            return (
                f"no SavedModel: set {MODEL_VARIABLE} to its folder (docs/servers.md)"
            )
        return None

    def prepare(self, folder: Path) -> None:
        """Writes the batching parameters."""
        folder.mkdir(parents=True)
        parameters = BATCHING.format(
            batch_size=self.batch_size,
            delay_us=MAX_BATCH_DELAY_MS * 1000,
            cores=self.cores,
        )
        (folder / "batching.txt").write_text(parameters)
        self._folder = folder

    @contextmanager
    def running(self) -> Iterator[RunningTfServing]:
        """See `ServerUnderTest`."""
        if self._folder is None:
            raise RuntimeError(f"server {self.name!r} was started before prepare()")
        if self.url:
            problem = why_no_model(self.url)
            if problem:
                raise ExpectedError(f"server {self.name!r}: {problem}")
            yield RunningTfServing(self.url, None)
            return
        port, grpc_port = resolve_ports(LOOPBACK, [0, 0])
        url = f"http://{LOOPBACK}:{port}/v1/models/{NAME}"
        launch = Launch(
            self.name,
            self._command(self._folder, port, grpc_port),
            self._folder / "tf-serving.log",
        )
        with launched(launch, is_ok(url)) as process:
            yield RunningTfServing(url, process)

    def _command(self, folder: Path, port: int, grpc_port: int) -> list[str]:
        # It has no option for the REST port's address and binds all of them.
        return [
            BINARY,
            f"--rest_api_port={port}",
            f"--port={grpc_port}",
            f"--model_name={NAME}",
            f"--model_base_path={self.saved_model}",
            "--enable_batching=true",
            f"--batching_parameters_file={folder / 'batching.txt'}",
            "--tensorflow_intra_op_parallelism=1",
            f"--tensorflow_inter_op_parallelism={self.cores}",
        ]


def why_no_model(url: str) -> str | None:
    """Why the model's status page is not there; None when it is."""
    try:
        is_there = is_ok(url)()
    except (httpx.TransportError, httpx.InvalidURL) as error:
        return f"no answer from {URL_VARIABLE}={url!r}: {error}"
    return None if is_there else f"{URL_VARIABLE}={url!r} is no model's status page"


def make_tf_serving(model: ModelUnderTest, cores: int) -> TfServingUnderTest:
    """The running server that the environment names, else the installed binary."""
    labels = model.labels
    call = Call(
        headers={"Content-Type": "application/json"},
        wrap=wrap_file,
        read_reply=lambda reply: read_predictions(reply, labels),
    )
    url = os.environ.get(URL_VARIABLE, "").rstrip("/").removesuffix(":predict")
    return TfServingUnderTest(
        call, cores, url or None, os.environ.get(MODEL_VARIABLE) or None
    )
