"""The measured figures of README.md and docs/results.md are those of the committed results."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "figures.py"


@pytest.fixture(scope="module")
def figures():
    spec = importlib.util.spec_from_file_location("figures", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_figure_is_that_of_its_result(figures, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["figures.py"])
    assert figures.main() == 0, capsys.readouterr().err
