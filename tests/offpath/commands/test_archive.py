from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.archive.conftest import THREE_CLASSES
from tests.offpath.conftest import Done, Run
from tests.support.photographs import PHOTOGRAPHS, encode

Archive = Callable[..., Done]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def archive(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """`archive(...)`: what `offpath archive ...` leaves, beside net.py, net.pt and labels.txt."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(THREE_CLASSES)
    Path("labels.txt").write_text("red\ngreen\nblue\n")
    torch.save({"head.weight": torch.eye(3), "head.bias": torch.zeros(3)}, "net.pt")

    def call(*arguments: str, model: bool = True) -> Done:
        named = ["--model", "net.py", "--weights", "net.pt"] if model else []
        return run("archive", "--output", "store", *named, *arguments)

    return call


def read_config(archive: Path) -> dict[str, Any]:
    with zipfile.ZipFile(archive) as file:
        config: dict[str, Any] = yaml.safe_load(file.read("model-config.yaml"))
    return config


def test_archive_is_built_and_said(archive: Archive, store: Path) -> None:
    code, out, _ = archive("--name", "net", "--labels", "labels.txt")
    assert code == 0
    assert "net.mar" in out
    assert "batch 8, delay 1 ms, 2 workers" in out
    assert [file.name for file in store.iterdir()] == ["net.mar"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_archive_for_a_gpu_says_that_there_is_none_here(archive: Archive) -> None:
    code, _, err = archive("--preset", "t4", "--name", "net")
    assert code == 0
    assert "asks for a GPU, and torch finds none" in err and "--allow-cpu" in err


def test_options_end_up_in_the_archives_settings(archive: Archive, store: Path) -> None:
    Path("mine.yaml").write_text(
        yaml.safe_dump(
            {
                "minWorkers": 1,
                "maxWorkers": 1,
                "batchSize": 4,
                "maxBatchDelay": 9,
                "responseTimeout": 50,
                "startupTimeout": 60,
                "handler": {"prediction_log": {"uri": "off", "sync": "fsync"}},
            }
        )
    )
    code, out, _ = archive(
        *("--preset", "mine.yaml", "--batch-size", "16", "--workers", "3"),
        *("--set", "decode=exact", "--set", "mean=[0.5, 0.5, 0.5]"),
        *("--set", "exif_orientation=true", "--prediction-log", "s3://bucket/prefix"),
        "--json",
    )
    assert code == 0
    summary = json.loads(out)
    config = read_config(store / "classifier.mar")
    assert summary["config"] == config
    assert summary["bytes"] == (store / "classifier.mar").stat().st_size
    assert (config["batchSize"], config["maxBatchDelay"]) == (16, 9)
    assert (config["minWorkers"], config["maxWorkers"]) == (3, 3)
    assert config["handler"] == {
        "prediction_log": {"uri": "s3://bucket/prefix", "sync": "fsync"},
        "decode": "exact",
        "mean": [0.5, 0.5, 0.5],
        "exif_orientation": True,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--labels", "no.txt"], "no such file"),
        (["--labels", "net.pt"], "net.pt is not UTF-8"),
        (
            ["--preset", "a100"],
            "--preset 'a100': no such preset or file; presets: cpu, t4",
        ),
        (
            ["--max-batch-delay-ms", "0"],
            "maxBatchDelay is 0; accepted: an integer from 1",
        ),
        (["--workers", "0"], "minWorkers is 0"),
        (
            ["--mean", "a,b"],
            "--mean 'a,b'; expected one number, or one number per channel",
        ),
        (["--mean", "0.5,0.5"], "handler.mean is [0.5, 0.5]; accepted: one number a"),
        (
            ["--std", "0"],
            "handler.std is [0.0]; accepted: one number per channel, above",
        ),
        (["--std", "nan"], "handler.std is [nan]"),
        (["--set", "channels=2"], "handler.channels is 2; accepted: 1 or 3"),
        (
            ["--set", "channels=1"],
            "handler.channels is 1 and handler.mean is not given",
        ),
        (
            ["--set", "resize=crop"],
            "handler.resize is 'crop'; accepted: one of shorter",
        ),
        (["--set", "interpolation=nearest"], "accepted: one of bilinear, bicubic"),
        (
            ["--set", "fill=300"],
            "handler.fill is 300; accepted: one integer per channel",
        ),
        (
            ["--set", "resize=letterbox", "--set", "resize_size=256"],
            "handler.image_size 224; a letterbox has one size",
        ),
        (
            ["--set", "activation=relu"],
            "handler.activation is 'relu'; accepted: one of",
        ),
        (["--set", "threshold=0.5"], "handler.threshold is 0.5 and handler.activation"),
        (
            ["--set", "threshold=2", "--set", "activation=sigmoid"],
            "handler.threshold is 2; accepted: a number from 0 to 1",
        ),
        (["--set", "decode"], "expected KEY=VALUE"),
        (["--set", "decode=fast"], "handler.decode is 'fast'; accepted: one of scaled"),
        (["--set", "mean=[0.5"], "--set 'mean=[0.5'"),
        (["--set", "top_k=2026-13-45"], "--set 'top_k=2026-13-45'"),
        (["--set", "prediction_log=5"], "handler.prediction_log is 5"),
        (
            ["--set", "prediction_log=5", "--prediction-log", "off"],
            "prediction_log=5: expected a mapping",
        ),
        (["--prediction-log", "http://x/y"], "prediction_log.uri is 'http://x/y'"),
        (["--extra-file", "no.txt"], "--extra-file 'no.txt': no such file"),
        (["--extra-file", "net.py"], "the archive already has a net.py"),
        (["--name", "a b"], "--name 'a b': accepted are letters"),
        (["--engine", "tflite"], "handler.engine is 'tflite'; accepted: one of auto"),
        (["--precision", "int4"], "handler.precision is 'int4'; accepted: one of auto"),
        (
            ["--engine", "eager", "--precision", "int8"],
            "handler.precision is 'int8'; handler.engine 'eager' has fp32",
        ),
        (["--engine", "tensorrt"], "needs a CUDA device"),
        (
            ["--engine", "openvino", "--preset", "t4"],
            "--engine openvino runs on the CPU",
        ),
        (["--calibrate", "no-such"], "--calibrate 'no-such': no such folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_said_and_builds_nothing(
    archive: Archive, store: Path, arguments: list[str], message: str
) -> None:
    code, out, err = archive(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("offpath: ") and message in err
    assert err.count("\n") == 1
    assert not store.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "no.py"], "--model 'no.py': no such file or model; accepted"),
        (
            ["--model", "net.py", "--weights", "no.pt"],
            "--weights 'no.pt': no such file",
        ),
        (
            ["--model", "near-free", "--weights", "net.pt"],
            "missing: linear.weight, linear.bias",
        ),
        (
            ["--model", "near-free", "--labels", "labels.txt"],
            "has 3 labels, but the model",
        ),
        (["--model", "near-free", "--set", "image_size=336"], "it takes 224 x 224"),
        (
            ["--model", "net.py:Other", "--weights", "net.pt"],
            "has no class or function",
        ),
        (["--model", "no.py:Net", "--weights", "net.pt"], "'no.py:Net': no such file"),
        (["--model", "torchvision:", "--weights", "net.pt"], "no such classifier"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_model_that_cannot_be_used_is_said(
    archive: Archive, store: Path, arguments: list[str], message: str
) -> None:
    code, _, err = archive(*arguments, model=False)
    assert code == 2
    assert message in err and err.count("\n") == 1
    assert not store.exists()


@pytest.mark.parametrize("size", [32, 33, 336])
def test_any_image_size_builds(archive: Archive, store: Path, size: int) -> None:
    code, _, err = archive("--set", f"image_size={size}", "--engine", "eager")
    assert code == 0, err
    assert read_config(store / "classifier.mar")["handler"]["image_size"] == size


def test_grey_model_builds_from_a_list_of_numbers(
    archive: Archive, store: Path
) -> None:
    Path("net.py").write_text(THREE_CLASSES.replace("Linear(3, 3)", "Linear(1, 3)"))
    torch.save(
        {"head.weight": torch.eye(3)[:, :1], "head.bias": torch.ones(3)}, "net.pt"
    )
    grey = ("--set", "channels=1", "--mean", "0.5", "--std", "0.25")
    code, _, err = archive(*grey, "--set", "activation=auto")
    assert code == 0, err
    assert "activation auto: softmax; the model's outputs are no probabilities" in err
    handler = read_config(store / "classifier.mar")["handler"]
    assert (handler["mean"], handler["std"]) == ([0.5], [0.25])
    assert handler["activation"] == "softmax"


def test_force_replaces_an_archive_which_has_its_own_version(
    archive: Archive, store: Path
) -> None:
    assert archive().code == 0
    assert "pass --force" in archive("--model-version", "2.0").err
    assert archive("--model-version", "2.0", "--force").code == 0
    with zipfile.ZipFile(store / "classifier.mar") as file:
        manifest = json.loads(file.read("MAR-INF/MANIFEST.json"))
    assert manifest["model"]["modelVersion"] == "2.0"


def test_output_that_is_a_file_is_wrong_usage(archive: Archive, store: Path) -> None:
    store.write_text("")
    assert archive()[0] == 2


def test_engine_travels_in_the_archive_with_its_settings(
    archive: Archive, store: Path, tmp_path: Path
) -> None:
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    for photograph in PHOTOGRAPHS[:6]:
        jpeg = encode(photograph.rgb.resize((300, 260)), "JPEG")
        (photographs / f"{photograph.name}.jpg").write_bytes(jpeg)
    engine = ("--engine", "openvino", "--precision", "fp32")
    code, out, err = archive(*engine, "--calibrate", str(photographs), "--json")
    assert code == 0
    assert json.loads(out)["config"]["handler"] == {
        "engine": "openvino",
        "precision": "fp32",
    }
    assert "engine openvino fp32: on 3 photographs" in err
    assert read_config(store / "classifier.mar")["handler"]["engine"] == "openvino"
    with zipfile.ZipFile(store / "classifier.mar") as file:
        inside = [name for name in file.namelist() if name.startswith("engine/")]
    assert inside == [
        "engine/model.fp32.bin",
        "engine/model.fp32.xml",
        "engine/parity.npz",
    ]


def test_auto_engine_of_a_light_model_brings_photographs_alone(
    archive: Archive, store: Path
) -> None:
    assert archive()[0] == 0
    assert "engine" not in read_config(store / "classifier.mar").get("handler", {})
    with zipfile.ZipFile(store / "classifier.mar") as file:
        inside = [name for name in file.namelist() if name.startswith("engine/")]
    assert inside == ["engine/parity.npz"]
