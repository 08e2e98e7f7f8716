"""Handlers that change TorchServe's: converted where their difference can be expressed."""

from __future__ import annotations

import importlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from offpath.archive.custom_handler import CustomHandler
from offpath.archive.sources import old_handler
from offpath.archive.sources.handler_process import describe
from offpath.archive.sources.old_handler import compare_replies, is_same
from offpath.archive.sources.stock_archive import unpack
from offpath.errors import WrongOption
from tests.archive.sources.test_stock_archive import convert
from tests.support.hostile_archives import pack
from tests.support.photographs import PHOTOGRAPHS
from tests.support.stock_archive import make_stock

# TorchServe's example examples/image_classifier/mnist, with its model in fewer layers.
MNIST = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.fc = torch.nn.Linear(4 * 26 * 26, 10)

    def forward(self, images):
        hidden = torch.relu(self.conv(images)).flatten(1)
        return torch.log_softmax(self.fc(hidden), 1)
"""
HANDLER = """
from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier


class Digits(ImageClassifier):
    image_processing = transforms.Compose([
        transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))
    ])

    def __init__(self):
        super().__init__()
        self.profiler_args = {"record_shapes": True}
        self.set_max_result_classes(3)

    def say(self, row):
        return [row.argmax().item(), {"sum": row.exp().sum().item(), "classes": self.topk}]

    def postprocess(self, data):
        print("a line on stdout")
        return [self.say(row) for row in data]
"""


def test_the_mnist_example_is_converted(tmp_path: Path) -> None:
    (tmp_path / "mnist.py").write_text(MNIST)
    (tmp_path / "mnist_handler.py").write_text(HANDLER)
    torch.manual_seed(1)
    made: dict[str, Any] = {}
    exec(MNIST, made)
    torch.save(made["Net"]().state_dict(), tmp_path / "mnist_cnn.pt")
    old = make_stock(
        *(tmp_path / "old", tmp_path / "mnist.py", tmp_path / "mnist_cnn.pt"),
        handler=str(tmp_path / "mnist_handler.py"),
    )
    digits = tmp_path / "digits"
    digits.mkdir()
    for photograph in PHOTOGRAPHS[:3]:
        photograph.rgb.convert("L").resize((28, 28)).save(digits / f"{photograph.name}.png")
    new, said = convert(old, "--set", "image_size=28", "--calibrate", str(digits))
    assert "running mnist_handler.py and mnist.py of" in said
    assert "compared with the old handler on 3 photographs: the same answers" in said
    assert "warning" not in said
    with zipfile.ZipFile(new) as archive:
        section = yaml.safe_load(archive.read("model-config.yaml"))["handler"]
        assert "mnist_handler.py" not in archive.namelist()
    expected = {"image_size": 28, "channels": 1, "mean": [0.1307], "std": [0.3081], "top_k": 3}
    assert section.items() >= expected.items()


CLASS = """
from torchvision import transforms
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.object_detector import ObjectDetector
from ts.torch_handler.vision_handler import VisionHandler


class Mine({base}):
    image_processing = transforms.Compose(
        [transforms.Resize((32, 32)), transforms.ToTensor()]
    )
    {body}
"""
PLAIN = {"resize": "stretch", "resize_size": 32, "image_size": 32, "interpolation": "bilinear"}
PLAIN |= {"mean": [0.0], "std": [1.0]}


def describe_class(
    folder: Path, monkeypatch: pytest.MonkeyPatch, base: str, body: str
) -> dict[str, Any]:
    (folder / "a_handler.py").write_text(CLASS.format(base=base, body=body))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "a_handler", raising=False)
    importlib.invalidate_caches()
    return describe("a_handler.py")


@pytest.mark.parametrize(
    ("base", "body", "settings", "has_postprocess"),
    [
        pytest.param("ImageClassifier", "pass", {}, False, id="transforms-alone"),
        pytest.param("ImageClassifier", "topk = 3", {"top_k": 3}, False, id="topk"),
        pytest.param(
            *("ImageClassifier", "def postprocess(self, data): return data.tolist()", {}, True),
            id="postprocess",
        ),
        pytest.param("VisionHandler", "topk = 1", {"top_k": 1}, True, id="raw-scores"),
    ],
)
def test_what_a_subclass_changes_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    base: str,
    body: str,
    settings: dict[str, Any],
    has_postprocess: bool,
) -> None:
    found = describe_class(tmp_path, monkeypatch, base, body)
    assert found["settings"] == {**PLAIN, "top_k": 5, **settings}
    assert (found["name"], found["has_postprocess"]) == ("Mine", has_postprocess)


@pytest.mark.parametrize(
    ("base", "body", "named"),
    [
        pytest.param("BaseHandler", "pass", "Mine is no subclass of Image", id="base-handler"),
        pytest.param("ObjectDetector", "pass", "Mine is no subclass of Image", id="detector"),
        pytest.param(
            *("ImageClassifier", "def preprocess(self, data): return data"),
            *("overrides preprocess",),
            id="preprocess",
        ),
        pytest.param(
            *("ImageClassifier", "def initialize(self, context): super().initialize(context)"),
            *("overrides initialize",),
            id="initialize",
        ),
        pytest.param(
            *("ImageClassifier", "def __init__(self):\n        self.handle = print"),
            *("overrides handle",),
            id="replaced-in-init",
        ),
        pytest.param("ImageClassifier", "pass\nclass B: pass", "one of several", id="two-classes"),
        pytest.param(
            *("ImageClassifier", "pass\ndef handle(data, context): pass"),
            *("is no class",),
            id="function",
        ),
        pytest.param(
            *("ImageClassifier", "image_processing = print", "function.* no settings express"),
            id="transforms",
        ),
    ],
)
def test_what_cannot_be_converted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, body: str, named: str
) -> None:
    with pytest.raises(WrongOption, match=named):
        describe_class(tmp_path, monkeypatch, base, body)


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        pytest.param({"a": 0.6, "b": 0.4}, {"a": 0.598, "b": 0.402}, True, id="scores"),
        pytest.param({"a": 0.6, "b": 0.4}, {"a": 0.58, "b": 0.42}, False, id="other-scores"),
        pytest.param({"a": 0.501, "b": 0.499}, {"b": 0.501, "a": 0.499}, True, id="changed-places"),
        pytest.param({"a": 0.6, "b": 0.1}, {"a": 0.6, "c": 0.1}, True, id="another-fifth"),
        pytest.param({"a": 0.6, "b": 0.4}, {"b": 0.6, "a": 0.4}, False, id="another-best"),
        pytest.param({"a": 0.6}, {"b": 0.6}, False, id="another-label"),
        pytest.param({"a": 0.6}, {"a": float("nan")}, False, id="no-number"),
        pytest.param([{"class": 7, "score": 50.0}], [{"class": 7, "score": 50.1}], True, id="json"),
        pytest.param([{"class": 7, "score": 50.0}], [{"class": 7, "score": 51.0}], False, id="far"),
        pytest.param(998, 999, False, id="another-class"),
        pytest.param({"ok": True}, {"ok": False}, False, id="another-truth"),
        pytest.param({"label": "a"}, {"label": "b"}, False, id="another-text"),
        pytest.param({"label": "a"}, {"label": "a", "rank": 1}, False, id="another-key"),
        pytest.param([1, 2], [1], False, id="shorter"),
    ],
)
def test_replies_are_compared_by_what_they_hold(before: Any, now: Any, same: bool) -> None:
    assert is_same(before, now) is same


STOCK = {
    **{"modelName": "m", "handler": "image_classifier"},
    **{"modelFile": "net.py", "serializedFile": "net.pth"},
}
SAME = {"a": 0.9, "b": 0.1}


def compare(
    folder: Path, monkeypatch: pytest.MonkeyPatch, custom: CustomHandler | None, *replies: object
) -> str:
    """Compares the replies of both handlers to one photograph; an error is raised."""
    for name in ("old.mar", "new.mar"):
        pack(folder / name, {"model": STOCK}, {"net.py": b"", "net.pth": b""})
    old = unpack(folder / "old.mar", folder / "old")
    (folder / "photographs").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "photographs" / "one.jpg")
    (folder / "photographs" / "README").touch()
    said = iter(replies)

    def run(*_: object) -> list[object]:
        reply = next(said)
        if isinstance(reply, Exception):
            raise reply
        return [reply]

    monkeypatch.setattr(old_handler, "_run", run)
    return compare_replies(old, custom, folder / "photographs", folder / "new.mar")


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        pytest.param({"a": 0.5, "b": 0.4}, SAME, "answers one.jpg with", id="moved"),
        pytest.param(SAME, {"type": "PostprocessFailed"}, "PostprocessF", id="failed"),
        pytest.param({"text": "cat"}, "cat", '{"text": "cat"}', id="text"),
    ],
)
def test_another_answer_is_refused_before_the_archive_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Any, now: Any, message: str
) -> None:
    with pytest.raises(WrongOption, match=f"{message}.*serve the archive as it is"):
        compare(tmp_path, monkeypatch, None, before, now)


FAILED = WrongOption("RuntimeError: sizes of tensors must match")


def test_a_postprocess_that_was_never_compared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = CustomHandler(tmp_path / "h.py", "Own")
    with pytest.raises(WrongOption, match="sizes of tensors.*--calibrate FOLDER"):
        compare(tmp_path, monkeypatch, own, FAILED)


def test_settings_are_converted_also_where_the_old_handler_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TorchServe's own fails on a model of less than five classes.
    said = compare(tmp_path, monkeypatch, None, FAILED)
    assert said.startswith("not compared, because the old handler fails: RuntimeError")
