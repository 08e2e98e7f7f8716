"""The user's own model in the benchmark: out of a .mar."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offpath.archive.build import ArchiveSpec, build_archive
from offpath.archive.model_config import load_preset, make_model_config
from offpath.archive.sources.model_source import load_model_source
from offpath.profiling.load.model_under_test import load_model
from tests.archive.conftest import THREE_CLASSES

HANDLER = {
    "image_size": 96,
    "resize_size": 112,
    "mean": (0.5, 0.4, 0.3),
    "std": (0.1, 0.2, 0.3),
    "threads": 1,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OFFPATH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    definition, weights = tmp_path / "tiny.py", tmp_path / "tiny.pt"
    definition.write_text(THREE_CLASSES)
    torch.save({"head.weight": 9 * torch.eye(3), "head.bias": torch.ones(3)}, weights)
    source = load_model_source(str(definition), str(weights))
    config = make_model_config(load_preset("cpu"), {}, HANDLER)
    spec = ArchiveSpec("tiny", "1.0", source, ["red", "green", "blue"], "a test", config)
    return build_archive(spec, tmp_path).path


def test_model_weights_labels_and_preprocessing_come_from_the_archive(
    archive: Path, cache: Path
) -> None:
    model = load_model(str(archive))
    assert model.labels == ["red", "green", "blue"]
    assert (model.config.image_size, model.config.std) == (96, (0.1, 0.2, 0.3))
    # How it is run is the benchmark's, the same for all.
    assert "threads" not in model.source.handler
    images = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1).expand(1, 3, 96, 96)
    answer = model.source.module(images)
    assert torch.allclose(answer, torch.tensor([[10.0, 19.0, 28.0]]))
    assert model.model_file.parent.parent == cache / "models"
