from __future__ import annotations

import importlib
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from offpath.handler.model.weights import RandomFillsSkipped, make_with_weights


def read_mapping(file: Path) -> Counter[str]:
    """Returns the bytes of this process's pages of a file, by their kind."""
    found, sizes = False, Counter[str]()
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            found = line.endswith(str(file))
        elif found and line.endswith("kB"):
            name, size, _ = line.split()
            sizes[name] += 1024 * int(size)
    return sizes


def test_an_archives_weights_are_used_in_the_pages_of_its_file(
    model_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(model_store / "classifier.mar") as archive:
        for name in ("efficientnet_lite0.py", "weights.pt"):
            archive.extract(name, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    definition = importlib.import_module("efficientnet_lite0")
    file = tmp_path / "weights.pt"
    model = make_with_weights(definition.EfficientNetLite0, str(file)).eval()
    model.to(memory_format=torch.channels_last)
    with torch.inference_mode():
        model(torch.zeros(1, 3, 224, 224))
    sizes = read_mapping(file)
    # All of them were read, in place; a copy would have left the file's pages unread. A page that
    # somebody writes to becomes anonymous. The others are shared by all workers.
    assert sizes["Rss:"] > 0.9 * file.stat().st_size
    assert sizes["Anonymous:"] < 0.05 * sizes["Rss:"]


class RandomFeatures(torch.nn.Module):
    """A random buffer that is never saved."""

    def __init__(self) -> None:
        super().__init__()
        buffer = torch.empty(1000)
        torch.nn.init.normal_(buffer)
        self.register_buffer("features", buffer, persistent=False)


def test_buffers_are_filled_while_parameters_are_not() -> None:
    with RandomFillsSkipped():
        torch.manual_seed(0)
        state = torch.get_rng_state()
        torch.nn.Linear(100, 100)
        assert torch.equal(torch.get_rng_state(), state)
        features = RandomFeatures().features
    assert 0.9 < features.std() < 1.1
