"""Small models as files, and archives of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from offpath.archive.build import ArchiveSpec
from offpath.archive.mar_file import OUR_MARK, read_mar
from offpath.archive.model_config import load_preset, make_model_config
from offpath.archive.sources.model_source import ModelSource, load_model_source
from offpath.serving.check import trial

MakeSpec = Callable[..., ArchiveSpec]

THREE_CLASSES = """
import torch


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 3)

    def forward(self, images):
        return self.head(images.mean(dim=(2, 3)))
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """`tiny.py`: one class, three classes of answers."""
    file = tmp_path / "tiny.py"
    file.write_text(THREE_CLASSES)
    return file


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    """A state dict that fits `tiny.py`."""
    return {"head.weight": torch.eye(3), "head.bias": torch.zeros(3)}


@pytest.fixture
def weights_file(tmp_path: Path, weights: dict[str, torch.Tensor]) -> Path:
    file = tmp_path / "tiny.pt"
    torch.save(weights, file)
    return file


@pytest.fixture
def make_spec(model_file: Path, weights_file: Path) -> MakeSpec:
    """`make_spec(labels=[...], extra_files=(...))` of the tiny model."""

    def make(
        name: str = "tiny",
        labels: list[str] | None = None,
        extra_files: tuple[Path, ...] = (),
        model: str | None = None,
        weights: str | None = None,
        **handler: Any,
    ) -> ArchiveSpec:
        default = None if model else str(weights_file)
        source = load_model_source(model or str(model_file), weights or default)
        config = make_model_config(load_preset("cpu"), {}, handler)
        return ArchiveSpec(name, "1.0", source, labels, "labels.txt", config, extra_files)

    return make


def try_handlers_alone(patch: pytest.MonkeyPatch) -> None:
    """Lets archives without a custom handler be built untried: each process imports torch."""
    try_archive = trial.try_archive

    def try_some(path: Path) -> str:
        return try_archive(path) if OUR_MARK in read_mar(path).names else ""

    patch.setattr(trial, "try_archive", try_some)


def load(model: object, weights: str | None = "random") -> tuple[ModelSource, list[str]]:
    """Loads a model; returns it with the lines for the user."""
    said: list[str] = []
    return load_model_source(str(model), weights, said.append), said


def run_definition(source: ModelSource, folder: Path) -> torch.nn.Module:
    """Imports a written definition as TorchServe does, and calls its one class."""
    assert source.definition is not None
    names: dict[str, object] = {}
    for name, file in source.files.items():
        (folder / name).write_text(file.read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        exec(compile(source.definition, "offpath_model.py", "exec"), names)
        made = names["OffpathModel"]()  # type: ignore[operator]
        for name in source.files:
            sys.modules.pop(name.removesuffix(".py"), None)
    return made  # type: ignore[no-any-return]
