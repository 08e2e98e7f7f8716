"""The measured figures of README.md and docs/results.md are those of the committed results."""

from __future__ import annotations

import importlib.util
import shutil
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


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        pytest.param(" 1,584 answers", " 1,585 answers", "expected '1,584'", id="wrong-figure"),
        pytest.param("\n## ", "\n500 requests per second\n\n## ", "has no source", id="no-source"),
        pytest.param("SIGKILLs of workers", "kills of workers", "0 places have", id="no-sentence"),
    ],
)
def test_a_figure_that_no_result_has_is_named(
    figures, monkeypatch, capsys, tmp_path, old, new, problem
):
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("research"))
    text = (ROOT / "README.md").read_text("utf-8")
    assert old in text
    (tmp_path / "README.md").write_text(text.replace(old, new, 1), "utf-8")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["figures.py"])
    assert figures.main() == 1
    assert problem in capsys.readouterr().err
