from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from offpath.archive.mar_file import read_archives
from offpath.archive.model_config import load_preset
from tests.archive.conftest import THREE_CLASSES, try_handlers_alone
from tests.guarantees import guarantee
from tests.offpath.conftest import Done, Run, read_json_keys

Archive = Callable[..., Done]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def archive(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """`archive(...)` runs `offpath archive` for net.py."""
    try_handlers_alone(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(THREE_CLASSES)
    torch.save({"head.weight": torch.eye(3), "head.bias": torch.zeros(3)}, "net.pt")

    def call(*arguments: str) -> Done:
        model = ("--model", "net.py", "--weights", "net.pt")
        return run("archive", "--output", "store", *model, *arguments)

    return call


def read_config(archive: Path) -> dict[str, Any]:
    with zipfile.ZipFile(archive) as file:
        config: dict[str, Any] = yaml.safe_load(file.read("model-config.yaml"))
    return config


@guarantee("Settings that would open something")
def test_options_end_up_in_the_archives_settings(archive: Archive, store: Path) -> None:
    log = {"uri": "off", "sync": "fsync"}
    preset = {**load_preset("cpu"), "handler": {"prediction_log": log}}
    Path("mine.yaml").write_text(yaml.safe_dump({**preset, "maxBatchDelay": 9}))
    code, out, err = archive(
        *("--preset", "mine.yaml", "--batch-size", "16", "--workers", "3"),
        *("--set", "decode=exact", "--set", "mean=[0.5, 0.5, 0.5]"),
        *("--set", "exif_orientation=true", "--set", "image_size=33"),
        *("--prediction-log", "s3://bucket/prefix"),
        "--json",
    )
    assert code == 0, err
    summary = json.loads(out)
    config = read_config(store / "classifier.mar")
    assert list(summary) == read_json_keys()["archive"]
    assert summary["config"] == config
    assert summary["bytes"] == (store / "classifier.mar").stat().st_size
    assert (config["batchSize"], config["maxBatchDelay"]) == (16, 9)
    assert (config["minWorkers"], config["maxWorkers"]) == (3, 3)
    assert config["handler"] == {
        "prediction_log": {"uri": "s3://bucket/prefix", "sync": "fsync"},
        "decode": "exact",
        "mean": [0.5, 0.5, 0.5],
        "exif_orientation": True,
        "image_size": 33,
    }


def test_a_second_version_is_a_second_file(archive: Archive, store: Path) -> None:
    assert archive().code == archive("--model-version", "2.0").code == 0
    archives = read_archives(store, ["classifier.mar", "classifier-2.0.mar"])
    held = [(name, archive.model_version) for name, archive in archives]
    assert held == [("classifier", "1.0"), ("classifier", "2.0")]
    refused = archive("--model-version", "1/2")
    assert refused.code == 2 and "--model-version '1/2': accepted" in refused.err


HANDLER = """
import torch
from offpath.handler.classifier import OffpathClassifier


class Mine(OffpathClassifier):
    def postprocess_item(self, result):
        return {answer}
"""


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        pytest.param(
            "{'best': result.predictions[0].label}",
            *(0, 'the handler\'s answer to espresso.jpg: 200 {"best":"0"}\n'),
            id="answers",
        ),
        pytest.param(
            "result.prediction[0]",
            *(2, "AttributeError in my_handler.py, line 8: \"'Result' object has no attribute"),
            id="raises",
        ),
        pytest.param(
            "{'scores': result.outputs}",
            *(2, "TypeError in my_handler.py, line 7: 'Object of type Tensor is not JSON"),
            id="tensor",
        ),
    ],
)
def test_a_handler_of_the_users_answers_a_photograph_before_it_is_packed(
    archive: Archive, store: Path, answer: str, code: int, said: str
) -> None:
    Path("my_handler.py").write_text(HANDLER.format(answer=answer))
    done = archive("--handler", "my_handler.py", "--engine", "eager", "--precision", "fp32")
    assert done.code == code and said in done.err
    assert (store / "classifier.mar").exists() == (code == 0)
