"""Ten archives of ten kinds, as they are: a real TorchServe and Granian give equal replies."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import torchvision
from PIL import Image

from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.session import make_server
from tests.serving.granian.test_foreign import ECHO, NET
from tests.support.echo_archive import write_archive
from tests.support.front import front
from tests.support.images import encode, jpeg

pytestmark = [pytest.mark.server, pytest.mark.slow]
RESNET = """
from torchvision.models.resnet import BasicBlock, ResNet


class Net(ResNet):
    def __init__(self):
        super().__init__(BasicBlock, [1, 1, 1, 1], num_classes=7)
"""
SQUEEZENET = """
from torchvision.models.squeezenet import SqueezeNet


class Net(SqueezeNet):
    def __init__(self):
        super().__init__("1_1", num_classes=7)
"""
SUBCLASS = """
from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier


class Digits(ImageClassifier):
    image_processing = transforms.Compose(
        [transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()]
    )
    topk = 2

    def postprocess(self, data):
        return [{"best": one.argmax().item(), "score": one.max().item()} for one in data]
"""
VISION = """
from ts.torch_handler.vision_handler import VisionHandler


class Scores(VisionHandler):
    def preprocess(self, data):
        from torchvision import transforms
        self.image_processing = transforms.Compose(
            [transforms.Resize((32, 32)), transforms.ToTensor()]
        )
        return super().preprocess(data)

    def postprocess(self, data):
        return data.tolist()
"""
NUMBERS = """
import torch
from ts.torch_handler.base_handler import BaseHandler


class Numbers(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row["body"]["pixels"] for row in data]).expand(-1, 3, 8, 8)
"""
OWN_CLASS = """
import hashlib


class Sums:
    def __init__(self):
        self.seed = None

    def initialize(self, context):
        self.seed = context.manifest["model"]["modelName"]

    def handle(self, data, context):
        texts = [repr(sorted(row.items())) for row in data]
        return [{"seed": self.seed, "sum": hashlib.md5(t.encode()).hexdigest()} for t in texts]
"""
ENTRY = """
def count(data, context):
    return [f"{len(row)} parts" for row in data] if data is not None else None
"""
ONE = {"minWorkers": 1, "maxWorkers": 1, "batchSize": 1}
EIGHT = {**ONE, "batchSize": 8, "maxBatchDelay": 20}
ARCHIVES = (
    *("resnet-one", "squeezenet-eight", "mobilenet-script-eight", "shufflenet-script-default"),
    *("subclass-one", "vision-eight", "base-one", "class-eight", "function", "entry-eight"),
)
PHOTOGRAPH = jpeg(size=(96, 64))
GREY = encode(Image.open(io.BytesIO(PHOTOGRAPH)).convert("L").resize((50, 70)), "PNG")
TEXT = base64.b64encode(PHOTOGRAPH).decode()
TYPED = {"Content-Type": "image/jpeg"}
# Twenty requests, half of them bad to most handlers: arguments for httpx.
REQUESTS: dict[str, dict[str, Any]] = {
    "photograph": {"content": PHOTOGRAPH},
    "typed": {"content": PHOTOGRAPH, "headers": TYPED},
    "put": {"content": PHOTOGRAPH, "method": "PUT"},
    "grey": {"content": GREY},
    "form": {"files": {"data": ("a.jpg", PHOTOGRAPH, "image/jpeg")}},
    "form-body": {"files": {"body": ("a.jpg", GREY, "image/jpeg")}},
    "form-two": {"files": [("data", ("a", PHOTOGRAPH)), ("more", ("b", GREY))]},
    "base64": {"json": TEXT},
    "tensor": {"json": [[[0.5] * 224] * 224] * 3},
    "pixels": {"json": {"pixels": [[[0.25]]]}},
    "pixels-ragged": {"json": {"pixels": [[0.25], []]}},
    "instances": {"json": {"instances": [{"data": TEXT}]}},
    "truncated": {"content": PHOTOGRAPH[: len(PHOTOGRAPH) // 2]},
    "text": {"content": "caf\u00e9", "headers": {"Content-Type": "text/plain"}},
    "zeros": {"content": bytes(1000), "headers": TYPED},
    "empty": {"content": b""},
    "json-bad": {"content": b"{", "headers": {"Content-Type": "application/json"}},
    "base64-bad": {"json": "AAAA"},
    "form-other": {"files": {"photo": ("a.jpg", PHOTOGRAPH, "image/jpeg")}},
    "urlencoded": {"data": {"data": "1"}},
}


def save(what: Any) -> bytes:
    stream = io.BytesIO()
    (torch.jit.save if isinstance(what, torch.jit.ScriptModule) else torch.save)(what, stream)
    return stream.getvalue()


def save_eager(text: str) -> dict[str, Any]:
    """Returns the files of a model that is a class and its weights, with their entries."""
    scope: dict[str, Any] = {}
    exec(text, scope)
    weights = save(scope["Net"]().state_dict())
    return {"net.py": text, "net.pth": weights}


def save_script(module: torch.nn.Module) -> dict[str, Any]:
    return {"net.pt": save(torch.jit.script(module.eval()))}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("ten")
    torch.manual_seed(0)
    eager = {"modelFile": "net.py", "serializedFile": "net.pth"}
    script = {"serializedFile": "net.pt"}
    stock = "image_classifier"
    mobilenet = save_script(torchvision.models.mobilenet_v3_small(num_classes=7))
    shufflenet = save_script(torchvision.models.shufflenet_v2_x0_5(num_classes=7))
    net = save_eager(NET)
    labels = {"index_to_name.json": json.dumps({n: f"label {n}" for n in range(7)})}
    for name, files, handler, config, entries in (
        ("resnet-one", save_eager(RESNET) | labels, stock, ONE, eager),
        ("squeezenet-eight", save_eager(SQUEEZENET), stock, EIGHT, eager),
        ("mobilenet-script-eight", mobilenet | labels, stock, EIGHT, script),
        ("shufflenet-script-default", shufflenet, stock, None, script),
        ("subclass-one", {**net, "digits.py": SUBCLASS}, "digits.py", ONE, eager),
        ("vision-eight", {**net, "handler.py": VISION}, "handler.py", EIGHT, eager),
        ("base-one", {**net, "offpath.py": NUMBERS}, "offpath.py", ONE, eager),
        ("class-eight", {"sums.py": OWN_CLASS}, "sums.py", EIGHT, {}),
        ("function", {"handler.py": ECHO}, "handler.py", ONE, {}),
        ("entry-eight", {"entry.py": ENTRY}, "entry.py:count", EIGHT, {}),
    ):
        write_archive(store, name, files, handler, config, **entries)
    return store


Replies = dict[str, dict[str, httpx.Response]]


def ask_all(url: str) -> Replies:
    """Sends each request to each archive, to one after the other, so that no batch is mixed."""

    def ask_one(name: str) -> dict[str, httpx.Response]:
        target = f"{url}/predictions/{name}"
        with httpx.Client(timeout=120, headers={"x-do": "tell"}) as http:
            return {
                key: http.request(**{"method": "POST", **arguments, "url": target})
                for key, arguments in REQUESTS.items()
            }

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(ARCHIVES, pool.map(ask_one, ARCHIVES)))


@pytest.fixture(scope="module")
def theirs(store: Path) -> Replies:
    overrides = {"disable_token_authorization": "true", "default_workers_per_model": "1"}
    ports = {"inference_port": 0, "metrics_port": 0}
    names = tuple(f"{name}.mar" for name in ARCHIVES)
    settings = ServerSettings(store, names, stock=True, overrides=overrides, **ports)
    with make_server(settings) as server:
        return ask_all(server.inference_url)


@pytest.fixture(scope="module")
def ours(
    theirs: Replies, store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replies]:
    """Granian's replies; its start takes turns with TorchServe's."""
    folder = tmp_path_factory.mktemp("door")
    (folder / "my.properties").write_text("default_workers_per_model=1\n")
    options = ("--server", "granian", "--config", str(folder / "my.properties"))
    with front(store, folder / "logs", *options) as door:
        yield ask_all(door.url)


def show(reply: httpx.Response) -> list[Any]:
    body = reply.json() if reply.content[:1] in (b"{", b"[") else reply.content
    return [reply.status_code, reply.headers.get("content-type"), body]


def is_close(one: Any, other: Any) -> bool:
    """Compares JSON; batches and threads move the last digits of a score."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-6)
    if isinstance(one, dict) and isinstance(other, dict):
        return [*one] == [*other] and all(is_close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_close, one, other))
    return bool(one == other)


@pytest.mark.parametrize("name", ARCHIVES)
def test_twenty_replies_of_an_archive_are_those_of_torchserve(
    theirs: Replies, ours: Replies, name: str
) -> None:
    statuses = [reply.status_code for reply in ours[name].values()]
    print(f"{name}: {len(statuses)} requests, {statuses.count(200)} good")
    assert 200 in statuses
    differences = {
        request: (show(ours[name][request]), show(reply))
        for request, reply in theirs[name].items()
        if not is_close(show(ours[name][request]), show(reply))
    }
    assert not differences
