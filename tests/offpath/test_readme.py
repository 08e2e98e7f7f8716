"""The measured figures of README.md and docs/results.md are those of the committed results."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "figures.py"
RATE = "offpath answers 0 requests per second<!--= direct-1200k offpath-granian-direct rate-->"


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


def test_a_figure_becomes_that_of_its_result(figures):
    mended = figures.rewrite(RATE)
    assert mended != RATE and figures.rewrite(mended) == mended
    table = "<!--table direct-1200k photos-1200k: latency-->\n\n| p50 |\n| 1 |\n\nText."
    mended = figures.rewrite(table)
    assert mended.count("\n| offpath-granian-direct |") == 1
    assert mended.endswith("|\n\nText.")
    assert figures.rewrite(mended) == mended


@pytest.mark.parametrize(
    "sentence, missing",
    [
        ("It is 3.5 times as fast.", "3.5 times"),
        ("It needs 512 MB.", "512 MB"),
        ("All 1,795 answers were there.", "1,795 answers"),
        ("Photographs of 1.2 MB, port 8080, `p99 10 ms`, [40 ms](a.md).", "40 ms"),
        (RATE, None),
    ],
)
def test_a_figure_without_a_mark_is_named(figures, sentence, missing):
    found = list(figures.list_unmarked(sentence, figures.ALLOWED))
    assert found == ([f"line 1: {missing!r} has no mark"] if missing else [])
