"""Stock archives, made by torch-model-archiver as TorchServe's examples make them."""

from __future__ import annotations

import contextlib
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torchvision.models.densenet import DenseNet

from offpath.archive.sources.model_source import load_model_source
from offpath.archive.sources.stock_archive import unpack
from offpath.cli import run
from offpath.errors import ExpectedError, WrongOption
from tests.support.stock_archive import make_stock

LABELS = {"0": ["n01", "crane"], "1": ["n02", "crane"], "2": ["n03", "heron"]}


@pytest.fixture
def stock(model_file: Path, weights_file: Path, tmp_path: Path) -> Any:
    """`stock(handler=..., labels=..., config=..., extra=...)`: the path of a stock .mar."""

    def make(**options: Any) -> Path:
        return make_stock(tmp_path / "old", model_file, weights_file, **options)

    return make


def convert(old: Path, *options: str) -> tuple[Path, str]:
    store = old.parent / "new"
    command = ["archive", "--from", str(old), "--output", str(store), "--engine", "eager"]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        run([*command, *options])
    assert not ended.value.code, said.getvalue()
    return store / "stock.mar", said.getvalue()


def test_model_labels_name_and_settings_are_taken_over_and_changes_said(
    stock: Any, tmp_path: Path
) -> None:
    config = {"batchSize": 4, "maxBatchDelay": 0, "foo": 1}
    old = stock(labels=LABELS, config=config, extra="notes.txt", version="2.1")
    new, said = convert(old)
    with zipfile.ZipFile(new) as archive:
        labels = json.loads(archive.read("index_to_name.json"))
        settings = yaml.safe_load(archive.read("model-config.yaml"))
        manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))["model"]
        assert "notes.txt" in archive.namelist()
    assert labels == {"0": "crane (0)", "1": "crane (1)", "2": "heron"}
    assert (settings["batchSize"], settings["maxBatchDelay"]) == (4, 1)
    assert (manifest["modelName"], manifest["modelVersion"]) == ("stock", "2.1")
    for word in (
        "maxBatchDelay: 100 -> 1",
        "maxBatchDelay: 0 of model-config.yaml is left out",
        "foo: 1 of model-config.yaml",
        "several classes share crane",
        "--set decode=exact",
        "weights_only",
    ):
        assert word in said, word
    assert "batchSize:" not in said


def test_another_handler_is_refused_with_what_to_do(stock: Any, tmp_path: Path) -> None:
    old = stock(handler="object_detector")
    with pytest.raises(ExpectedError, match="not image_classifier.*--handler FILE.py"):
        unpack(old, tmp_path / "folder")
    assert unpack(old, tmp_path / "other", has_own_handler=True).name == "stock"


# TorchServe's first example, examples/image_classifier/densenet_161, with fewer layers.
DENSENET = r"""
import re
from torchvision.models.densenet import DenseNet

class ImageClassifier(DenseNet):
    def __init__(self):
        super().__init__(4, (1, 1), 8, num_classes=5)

    def load_state_dict(self, state_dict, strict=True):
        pattern = re.compile(
            r'^(.*denselayer\d+\.(?:norm|relu|conv))\.'
            r'((?:[12])\.(?:weight|bias|running_mean|running_var))$'
        )
        for key in list(state_dict.keys()):
            res = pattern.match(key)
            if res:
                new_key = res.group(1) + res.group(2)
                state_dict[new_key] = state_dict[key]
                del state_dict[key]
        return super().load_state_dict(state_dict, strict)
"""


def test_a_class_that_converts_its_checkpoint_is_converted(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(DENSENET)
    made = DenseNet(4, (1, 1), 8, num_classes=5)
    published = {
        re.sub(r"(norm|conv)([12]\.)", r"\1.\2", name): value
        for name, value in made.state_dict().items()
        if not name.endswith("num_batches_tracked")  # a newer buffer
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in published
    torch.save(published, tmp_path / "densenet161-8d451a50.pth")
    old = make_stock(
        *(tmp_path / "old", tmp_path / "model.py"),
        tmp_path / "densenet161-8d451a50.pth",
    )
    new, said = convert(old)
    assert "compared with the old handler on 4 photographs: the same scores" in said
    with zipfile.ZipFile(new) as archive:
        weights = torch.load(io.BytesIO(archive.read("weights.pt")), weights_only=True)
    expected = made.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    del published["classifier.weight"]
    torch.save(published, tmp_path / "densenet161-8d451a50.pth")
    with pytest.raises(WrongOption, match="own load_state_dict fails .*classifier.weight"):
        load_model_source(f"{tmp_path}/model.py", str(tmp_path / "densenet161-8d451a50.pth"))
