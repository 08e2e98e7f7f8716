"""Archives that are not offpath's, whose handlers answer what they were given or fail as told."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from tests.support.echo_archive import make_stock, write_archive

# Answers what it was given, or does what the first request of a batch says.
ECHO = """
import json
import os
import sys

import torch
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.metrics.dimension import Dimension
from ts.utils.util import PredictionException


def show(value):
    if isinstance(value, (bytes, bytearray)):
        return [type(value).__name__, len(value), bytes(value[:40]).decode("latin-1")]
    return value


def handle(data, context):
    if data is None:
        context.loaded = [os.path.basename(os.getcwd()) == os.path.basename(
            context.system_properties["model_dir"]), os.getcwd() in sys.path]
        return None
    row, said = data[0], context.get_request_header(0, "x-do")
    if said == "tell":
        return [{"rows": {k: show(v) for k, v in row.items()},
                 "types": {k: context.get_request_header(0, k) for k in row},
                 "header": context.get_request_header(0, "x-mine"),
                 "explain": context.get_request_header(0, "explain"),
                 "size": context.system_properties["batch_size"],
                 "gpu": context.system_properties["gpu_id"],
                 "loaded": context.loaded, "config": context.model_yaml_config}]
    if said == "headers":
        context.set_response_content_type(0, "text/plain")
        context.set_response_header(0, "X-Own", "1")
        context.set_response_status(code=418, phrase="Teapot", idx=0)
        return ["short and stout"]
    if said == "metrics":
        context.metrics.add_counter("Seen", 2)
        context.metrics.add_time("Took", 7.5, unit="ms")
        context.metrics.add_percent("Share", 50)
        return ["counted"]
    if said == "set":
        told = json.loads(bytes(row["body"]))
        context.set_response_status(**{"code": 200, "idx": 0, **told.get("status", {})})
        for key, value in told.get("headers", {}).items():
            context.set_response_header(0, key, value)
        for name, value, labels in told.get("metrics", []):
            dimensions = [Dimension(*one) for one in labels.items()]
            context.metrics.add_metric(name, value, "count", dimensions=dimensions)
        return ["set"]
    if said == "kind":
        kind = [context.get_request_header(0, key) for key in ("explain", "describe")]
        return [kind for _ in data]
    if said == "size":
        return [len(data) for _ in data]
    if said == "modules":
        return [[name for name in HEAVY if name in sys.modules]]
    if said == "id":
        return [context.get_request_id(idx) for idx in range(len(data))]
    if said == "stream":
        send_intermediate_predict_response(["part"], context.request_ids, "ok", 200, context)
    if said in ERRORS:
        raise ERRORS[said]
    return REPLIES.get(said, [b"unknown"])


HEAVY = ["captum", "torch._dynamo", "openvino.torch", "onnxruntime"]
ERRORS = {
    "fail": ValueError("secret"),
    "memory": MemoryError(),
    "cuda": RuntimeError("CUDA error: out of memory"),
    "refuse": PredictionException("not today", 422),
}
REPLIES = {
    "bytes": [b"\\x00\\xff"],
    "text": ["caf\\u00e9"],
    "dict": [{"b": 1, "a": [0.5, None]}],
    "number": [3],
    "tensor": [torch.arange(3)],
    "set": [{1, 2}],
    "none": [None],
    "two": ["a", "b"],
    "nothing": [],
    "no list": "a text",
}
"""
# A subclass in a module whose name is our package's.
OWN_CLASS = """
from ts.torch_handler.base_handler import BaseHandler

import helper


class Mine(BaseHandler):
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [helper.WORD for _ in data]
"""
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.classifier = torch.nn.Linear(48, 7)

    def forward(self, images):
        pooled = torch.nn.functional.adaptive_avg_pool2d(images, 4)
        return self.classifier(pooled.flatten(1))
"""
# A class of its own, which fails as it is told.
SICK = """
import os
import signal
import sys
import time

class Sick:
    def initialize(self, context):
        self.held = []

    def handle(self, data, context):
        said = context.get_request_header(0, "x-do")
        if said == "raise":
            raise ValueError("secret")
        if said == "exit":
            sys.exit(1)
        if said == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if said == "hang":
            time.sleep(3600)
        if said == "leak":
            self.held.append(bytearray(os.urandom(1)) * 20_000_000)
            self.held.extend(open(os.devnull) for _ in range(20))
        return ["done"] * len(data)
"""
# What that handler does -> its requests, and how many of them fail.
FAULTS = {"raise": (5, 5), "exit": (1, 1), "kill": (1, 1), "hang": (1, 1), "leak": (20, 0)}
ONE = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 1}
CONFIG = {**ONE, "batchSize": 4, "maxBatchDelay": 50, "mine": {"a": 1}}


def write_foreign(store: Path) -> None:
    """Writes `echo`, `mine` (a folder), `sick` and `stock`, which torch-model-archiver makes."""
    write_archive(store, "echo", {"handler.py": ECHO}, "handler.py:handle", CONFIG)
    files = {"offpath.py": OWN_CLASS, "helper.py": "WORD = 'mine'"}
    unpack(write_archive(store, "mine", files, "offpath.py", CONFIG), store / "mine").unlink()
    limits = {**ONE, "responseTimeout": 5}
    write_archive(store, "sick", {"handler.py": SICK}, "handler.py", limits)
    net, weights = (store.with_name(f"net{suffix}") for suffix in (".py", ".pth"))
    net.write_text(NET)
    scope: dict[str, type[torch.nn.Module]] = {}
    exec(NET, scope)
    torch.manual_seed(0)
    torch.save(scope["Net"]().state_dict(), weights)
    labels = {str(n): f"label {n}" for n in range(7)}
    made = make_stock(store.with_name("made"), net, weights, labels=labels, config=CONFIG)
    made.rename(store / "stock.mar")


def unpack(path: Path, folder: Path) -> Path:
    """Unpacks an archive as `torch-model-archiver --archive-format no-archive` would make it."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return path
