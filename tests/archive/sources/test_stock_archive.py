"""Stock archives, made by torch-model-archiver as TorchServe's examples make them."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from offpath.archive.mar_file import copy_mar, read_mar
from offpath.archive.sources.stock_archive import unpack
from offpath.cli import run
from offpath.errors import ExpectedError
from offpath.serving.check import trial
from tests.archive.conftest import try_handlers_alone
from tests.support.echo_archive import make_stock

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
    with pytest.MonkeyPatch.context() as patch:
        try_handlers_alone(patch)
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
        "compared with the old handler on 4 photographs: the same scores",
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


OURS = """
from offpath.handler.classifier import OffpathClassifier


class Ours(OffpathClassifier):
    def postprocess_item(self, result):
        return [result.predictions[0].label, self.config.own["word"]]
"""


@pytest.mark.parametrize("kind", ["python", "program"])
def test_an_archive_of_an_earlier_offpath_is_built_again(
    kind: str, model_file: Path, weights_file: Path, tmp_path: Path
) -> None:
    files = {"my_handler.py": OURS, "labels.txt": "red\ngreen\nblue\n", "notes.txt": "kept"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    model = ["--model", str(model_file), "--weights", str(weights_file)]
    if kind == "program":
        net = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
        batch = [{0: torch.export.Dim.DYNAMIC}]
        program = torch.export.export(net, (torch.rand(2, 3, 64, 64),), dynamic_shapes=batch)
        torch.export.save(program, tmp_path / "net.pt2")
        model = ["--model", str(tmp_path / "net.pt2")]
    options = {
        "--labels": tmp_path / "labels.txt",
        "--extra-file": tmp_path / "notes.txt",
        "--engine": "eager",
        "--output": tmp_path / "built",
        "--name": "stock",
        "--precision": "bf16",  # so that it holds photographs with answers
        "--batch-size": "3",
    }
    settings = ("image_size=64", "resize_size=64", "own={word: x}", "top_k=2")
    given = [str(word) for option in options.items() for word in option]
    given += [word for one in settings for word in ("--set", one)]
    if kind == "python":
        given += ["--handler", str(tmp_path / "my_handler.py")]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(trial, "try_archive", lambda path: "")
        run(["archive", *model, *given])
    assert not ended.value.code
    built = read_mar(tmp_path / "built" / "stock.mar")
    manifest = {**built.manifest}
    del manifest["handler_api"]  # as in the first archives
    config = yaml.safe_load(zipfile.ZipFile(built.path).read("model-config.yaml"))
    config["handler"]["long_gone"] = 1
    old = tmp_path / "old" / "stock.mar"
    old.parent.mkdir()
    changed = {
        "MAR-INF/MANIFEST.json": json.dumps(manifest).encode(),
        "model-config.yaml": yaml.safe_dump(config).encode(),
        "offpath/handler/gone.py": b"",
    }
    copy_mar(built, old, changed)
    with pytest.raises(ExpectedError, match="manifest is 0, expected .*; offpath archive --from"):
        read_mar(old)

    new, said = convert(old)
    assert "compared with the old archive on 16 photographs: the same answers" in said
    assert ("answer to espresso.jpg: 200 [" in said) == (kind == "python")
    assert "handler.long_gone: this version has no such setting" in said
    converted = read_mar(new)
    assert converted.names == built.names
    assert converted.manifest == built.manifest
    with zipfile.ZipFile(new) as after, zipfile.ZipFile(built.path) as before:
        for name in converted.names - {"engine/parity.npz", "weights.pt", "model-config.yaml"}:
            assert after.read(name) == before.read(name)
        section = yaml.safe_load(after.read("model-config.yaml"))
    del config["handler"]["long_gone"]
    assert section == config
