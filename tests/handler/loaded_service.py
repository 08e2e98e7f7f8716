"""Loads an archive as TorchServe's or Granian's worker does, in this process, without a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import ts
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from ts.model_loader import ModelLoaderFactory
from ts.service import Service

from offpath.serving.granian.metric_sums import MetricSums, SummedMetric
from offpath.serving.service.archived_handler import ArchivedHandler
from offpath.serving.service.messages import Request
from tests.support.photographs import PHOTOGRAPHS, encode

BATCH_SIZE = 8


def load_service(mar: str, environ: dict[str, str] | None = None) -> Service:
    """Unzips the archive, puts its folder first on the path and loads it through ts."""
    folder = unzip(mar, environ)
    sys.path.insert(0, folder)
    metrics_yaml = Path(ts.__file__).parent / "configs" / "metrics.yaml"
    metrics = MetricsCacheYamlImpl(str(metrics_yaml))
    metrics.initialize_cache()
    service = ModelLoaderFactory.get_model_loader().load(
        "model", folder, "classifier_entry.py", None, BATCH_SIZE, None, True, metrics
    )
    service.set_cl_socket(None)
    return service


def unzip(mar: str, environ: dict[str, str] | None) -> str:
    """Sets the environment, and unzips an archive to a new folder."""
    os.environ.update(environ or {})
    folder = tempfile.mkdtemp(prefix="offpath-loaded-")
    with zipfile.ZipFile(mar) as file:
        file.extractall(folder)
    return folder


def load_archived(mar: str, environ: dict[str, str] | None = None) -> ArchivedHandler:
    """Unzips the archive and loads it as Granian's worker does."""
    folder, make_metric = Path(unzip(mar, environ)), partial(SummedMetric, MetricSums())
    return ArchivedHandler(folder, BATCH_SIZE, make_metric=make_metric)


def make_rows() -> list[dict[str, Any]]:
    """Makes a batch as the worker's protocol passes it, with good and bad items."""
    image = PHOTOGRAPHS[0].image
    payloads = [
        encode(image, "JPEG", quality=90),
        encode(image.resize((2048, 1365)), "JPEG", quality=90),
        encode(image, "PNG"),
        encode(image, "WEBP"),
        encode(image.convert("P"), "GIF"),
        encode(image, "TIFF"),
        encode(image, "BMP"),
        b"not an image",
    ]
    return [
        {
            "requestId": f"request-{index}".encode(),
            "headers": [],
            "parameters": [{"name": "body", "contentType": "", "value": bytearray(payload)}],
        }
        for index, payload in enumerate(payloads)
    ]


def predict(service: Service, rows: list[dict[str, Any]]) -> bytes:
    """Sends one batch through ts/service.py; returns the encoded reply."""
    return bytes(service.predict(rows))


def make_requests() -> list[Request]:
    """Makes the same batch as Granian's worker passes it."""
    return [
        Request(bytes(row["parameters"][0]["value"]), row["requestId"].decode())
        for row in make_rows()
    ]


# By server: what loads an archive, makes a batch and answers it.
WORKERS = {
    "torchserve": (load_service, make_rows, predict),
    "granian": (load_archived, make_requests, ArchivedHandler.handle),
}


# Runs in a separate process, because an audit hook cannot be removed.
PROGRAM = """
import json, sys, threading
from tests.handler.loaded_service import WORKERS

load, make_batch, predict = WORKERS[{server!r}]
service = load({mar!r}, {environ!r})
rows = make_batch()
predict(service, rows)  # a first batch, for what `initialize` cannot warm up
# These cost each worker seconds and megabytes. Only explanations and other engines need them.
heavy = set(sys.modules).intersection(["captum", "torch._dynamo", "openvino.torch", "onnxruntime"])
assert not heavy, heavy
events = []
watching = False
# ts/metrics/caching_metric.py reads the host's name (uname, no socket) once per batch.
ALLOWED = ("socket.gethostname",)
handler_thread = threading.get_ident()
WATCHED = ("open", "socket.", "os.rename", "os.remove", "os.mkdir", "os.listdir", "os.scandir",
           "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "shutil.",
           "tempfile.", "import")

def watch(event, arguments):
    if not watching or threading.get_ident() != handler_thread or event in ALLOWED:
        return
    if event.startswith(WATCHED):
        events.append(f"{{event}} {{arguments}}"[:200])

sys.addaudithook(watch)
watching = True
for _ in range(25):
    predict(service, rows)  # 8 requests
found = list(events)
for _ in range(2):
    open("/dev/null").close()
    predict(service, rows)
watching = False
print(json.dumps([found, events]))
"""


def watched_events(server: str, mar: Path, environ: dict[str, str] | None = None) -> list[str]:
    """Returns the events of 200 requests, after checking that the watch sees a file opened."""
    program = PROGRAM.format(server=server, mar=str(mar), environ=environ or {})
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found, with_planted = json.loads(done.stdout.strip().splitlines()[-1])
    assert sum("/dev/null" in event for event in with_planted) == 2
    return list(found)
