"""Handlers that change TorchServe's: converted where their difference can be expressed."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image

from offpath.archive.sources import old_handler
from offpath.archive.sources.handler_process import describe
from offpath.archive.sources.old_handler import compare_scores, convert_handler
from offpath.archive.sources.stock_archive import unpack
from offpath.errors import WrongOption
from offpath.handler.config import HandlerConfig
from tests.archive.sources.test_stock_archive import convert
from tests.guarantees import guarantee
from tests.support.echo_archive import make_stock
from tests.support.hostile_archives import STOCK, pack
from tests.support.photographs import PHOTOGRAPHS

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


def make_mnist(folder: Path, handler: str) -> Path:
    """Returns an archive of the example with a handler."""
    (folder / "mnist.py").write_text(MNIST)
    (folder / "mnist_handler.py").write_text(handler)
    torch.manual_seed(1)
    made: dict[str, Any] = {}
    exec(MNIST, made)
    torch.save(made["Net"]().state_dict(), folder / "mnist_cnn.pt")
    files = (folder / "mnist.py", folder / "mnist_cnn.pt")
    return make_stock(folder / "old", *files, handler=str(folder / "mnist_handler.py"))


def test_the_mnist_example_is_converted(tmp_path: Path) -> None:
    old = make_mnist(tmp_path, HANDLER)
    digits = tmp_path / "digits"
    digits.mkdir()
    for photograph in PHOTOGRAPHS[:3]:
        photograph.rgb.convert("L").resize((28, 28)).save(digits / f"{photograph.name}.png")
    new, said = convert(old, "--set", "image_size=28", "--calibrate", str(digits))
    assert "running mnist_handler.py and mnist.py of" in said
    assert "compared with the old handler on 3 photographs: the same scores" in said
    assert "warning" not in said
    with zipfile.ZipFile(new) as archive:
        section = yaml.safe_load(archive.read("model-config.yaml"))["handler"]
        assert "mnist_handler.py" not in archive.namelist()
    expected = {"image_size": 28, "channels": 1, "mean": [0.1307], "std": [0.3081], "top_k": 3}
    assert section.items() >= expected.items()


CLASS = """
from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier
from ts.torch_handler.object_detector import ObjectDetector
from ts.torch_handler.vision_handler import VisionHandler


class Mine({base}):
    image_processing = transforms.Compose(
        [transforms.Resize((32, 32)), transforms.ToTensor()]
    )
    {body}
"""


def write_handler(folder: Path, monkeypatch: pytest.MonkeyPatch, base: str, body: str) -> None:
    """Writes `a_handler.py` and makes it importable."""
    (folder / "a_handler.py").write_text(CLASS.format(base=base, body=body))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "a_handler", raising=False)
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("base", "body", "named"),
    [
        ("ObjectDetector", "pass", "Mine is no subclass of Image"),
        ("ImageClassifier", "def preprocess(self, data): return data", "overrides preprocess"),
        ("ImageClassifier", "def initialize(self, context): ...", "overrides initialize"),
        ("ImageClassifier", "def __init__(self): self.handle = print", "overrides handle"),
        ("ImageClassifier", "pass\nclass B: pass", "one of several"),
        ("ImageClassifier", "pass\ndef handle(data, context): pass", "is no class"),
        ("ImageClassifier", "image_processing = print", "function.* no settings express"),
    ],
)
def test_what_cannot_be_converted_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, body: str, named: str
) -> None:
    write_handler(tmp_path, monkeypatch, base, body)
    with pytest.raises(WrongOption, match=named):
        describe("a_handler.py")


# It answers in the place of the program, with whatever descriptor that has.
LIAR = """
import contextlib, json, os

settings = {{
    "top_k": 3, "explanations": True, "prediction_log": {{"uri": "s3://theirs/stolen"}},
    "interpolation": "bicubic" if "A_SECRET" in os.environ else "bilinear",
}}
said = json.dumps({{"settings": settings, "name": {name!r}, "has_postprocess": False}})
for descriptor in range(3, 100):
    with contextlib.suppress(OSError):
        os.write(descriptor, said.encode())
os._exit(0)
"""


@guarantee(
    "Code of archives that are converted",
    "archive/sources/old_handler.py",
    'in found["settings"].items() if key in DERIVED}',
    'in found["settings"].items()}',
)
@guarantee(
    "Code of archives that are converted",
    "archive/no_network.py",
    "            del os.environ[name]",
    "            pass",
)
def test_only_derived_settings_are_taken_of_what_an_archives_code_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "x")
    old = make_mnist(tmp_path, LIAR.format(name="Liar"))
    given = ("image_size=28", "resize=stretch", "channels=1", "mean=0.1", "std=0.3", "top_k=3")
    new, said = convert(old, *(word for one in given for word in ("--set", one)))
    assert "taken from stock.mar: top_k 3, interpolation 'bilinear'\n" in said
    with zipfile.ZipFile(new) as archive:
        section = yaml.safe_load(archive.read("model-config.yaml"))["handler"]
    assert section["interpolation"] == "bilinear"
    assert not section.keys() & {"prediction_log", "explanations"}


@pytest.mark.parametrize(
    ("code", "limit_s", "refused"),
    [
        pytest.param("while True: pass", 0.1, "its code still runs after 0.1 s", id="never-ends"),
        pytest.param("import os; os._exit(0)", 60, "it ends without the result", id="says-nothing"),
        pytest.param(LIAR.format(name="X\nimport os"), 60, "its class is called", id="bad-name"),
    ],
)
def test_code_that_does_not_describe_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, limit_s: float, refused: str
) -> None:
    files = {"net.py": b"", "net.pt": b"", "a_handler.py": code.encode()}
    pack(tmp_path / "old.mar", {"model": {**STOCK, "handler": "a_handler.py"}}, files)
    monkeypatch.setattr(old_handler, "LIMIT_S", limit_s)
    with pytest.raises(WrongOption, match=f"a_handler.py cannot be converted: {refused}"):
        convert_handler(unpack(tmp_path / "old.mar", tmp_path / "old"))


MODEL = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(1))
SCORES = torch.softmax(torch.tensor([0.2, 0.4, 0.6]), 0).tolist()


def compare(folder: Path, monkeypatch: pytest.MonkeyPatch, said: object) -> str:
    """Compares what the old handler says of a photograph with a model that averages its pixels."""
    pack(folder / "old.mar", {"model": STOCK}, {"net.py": b"", "net.pt": b""})
    (folder / "photographs").mkdir()
    Image.new("RGB", (8, 8), (51, 102, 153)).save(folder / "photographs" / "one.png")
    (folder / "photographs" / "README").touch()
    monkeypatch.setattr(old_handler, "_run", lambda *_: ["OSError: no image", said])
    return compare_scores(
        unpack(folder / "old.mar", folder / "old"),
        None,
        folder / "photographs",
        MODEL,
        HandlerConfig.from_mapping({"image_size": 32, "mean": 0.0, "std": 1.0}, environ={}),
    )


@pytest.mark.parametrize(
    "scores",
    [
        pytest.param([SCORES[0], SCORES[1] + 0.02, SCORES[2] - 0.02], id="moved"),
        pytest.param(SCORES[::-1], id="another-best"),
        pytest.param([float("nan")] * 3, id="no-number"),
        pytest.param([0.5, 0.5], id="of-other-classes"),
    ],
)
def test_other_scores_are_refused_before_the_archive_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[float]
) -> None:
    with pytest.raises(
        WrongOption, match="gives one.png (class|scores of) .*serve the archive as it is"
    ):
        compare(tmp_path, monkeypatch, scores)


def test_an_old_handler_that_was_never_compared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(WrongOption, match="sizes of tensors.*--calibrate FOLDER"):
        compare(tmp_path, monkeypatch, "RuntimeError: sizes of tensors must match")
