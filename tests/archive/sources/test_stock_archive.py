"""Stock archives, made by torch-model-archiver as TorchServe's examples make them."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from offpath.archive import build
from offpath.archive.sources.stock_archive import unpack
from offpath.cli import run
from offpath.errors import ExpectedError
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
    with pytest.MonkeyPatch.context() as patch:
        # A process that imports torch once more; test_build.py and the commands' tests run it.
        patch.setattr(build, "check_loads_alone", lambda *_: None)
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
