from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.archive.sources.checkpoint import find_state_dict, load_checkpoint
from offpath.errors import ExpectedError

WEIGHTS = {"conv.weight": torch.ones(2, 3), "fc.bias": torch.zeros(4)}
NAMES = frozenset(WEIGHTS)


def prefixed(prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": value for name, value in WEIGHTS.items()}


def read(path: Path, names: frozenset[str] = NAMES) -> tuple[set[str], list[str]]:
    said: list[str] = []
    loaded = load_checkpoint(path)
    return set(find_state_dict(loaded, path, names, said.append)), said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(WEIGHTS, [], id="plain"),
        pytest.param({"state_dict": WEIGHTS, "epoch": 3}, ["'state_dict'"], id="lightning"),
        pytest.param({"model": WEIGHTS, "optimizer": {"lr": 1}}, ["'model'"], id="model"),
        pytest.param(
            {"ema": prefixed("module."), "step": 1},
            ["'ema'", "'module.'"],
            id="ema-alone",
        ),
        pytest.param(prefixed("module."), ["'module.'"], id="ddp"),
        pytest.param(prefixed("module._orig_mod."), ["'module._orig_mod.'"], id="ddp-of-compiled"),
    ],
)
def test_weights_are_found_and_what_was_taken_off_is_said(
    tmp_path: Path, content: dict[str, Any], words: list[str]
) -> None:
    torch.save(content, tmp_path / "a.pt")
    names, said = read(tmp_path / "a.pt")
    assert names == set(WEIGHTS)
    assert len(said) == len(words)
    for line, word in zip(said, words):
        assert word in line and "a.pt" in line


def test_a_prefix_that_the_model_has_itself_stays(tmp_path: Path) -> None:
    own = prefixed("model.")
    torch.save(own, tmp_path / "a.pt")
    assert read(tmp_path / "a.pt", frozenset(own)) == (set(own), [])


def test_safetensors_are_read(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(prefixed("module."), tmp_path / "a.safetensors")
    assert read(tmp_path / "a.safetensors")[0] == set(WEIGHTS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param([torch.zeros(1)], "not a state dict .* but a list", id="list"),
        pytest.param({"epoch": 1, "lr": 0.1}, "its keys: epoch, lr", id="no-weights"),
        pytest.param(torch.nn.Linear(3, 3), r"torch\.save\(model\.state_dict\(\)", id="model"),
    ],
)
def test_file_without_a_state_dict_is_refused(
    tmp_path: Path, content: object, message: str
) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(ExpectedError, match=message):
        read(tmp_path / "a.pt")


def test_file_that_is_missing_or_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExpectedError, match="no such file"):
        read(tmp_path / "gone.pt")
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(ExpectedError, match="is not a safetensors file"):
        read(tmp_path / "a.safetensors")
