"""The measured figures of README.md and docs/results.md are those of the committed results."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
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


def test_every_figure_is_that_of_its_result():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_figure_becomes_that_of_its_result(figures):
    mended = figures.rewrite(RATE)
    assert mended != RATE and figures.rewrite(mended) == mended
    table = "<!--table direct-1200k photos-1200k: latency-->\n\n| p50 |\n| 1 |\n\nText."
    assert figures.rewrite(table).count("\n| offpath-granian-direct |") == 1
    assert figures.rewrite(table).endswith("|\n\nText.")
    assert figures.rewrite(figures.rewrite(table)) == figures.rewrite(table)


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


@pytest.mark.parametrize(
    "mark, said",
    [
        ("no-such rate", "no result 'no-such'"),
        ("direct-1200k nginx rate", "expected a server"),
        ("direct-1200k offpath-direct speed", "no figure 'speed'"),
        ("direct-1200k offpath-direct rate p99 p50", "fewer numbers"),
        ("kills-granian /no such line (.)/", "0 places match"),
    ],
)
def test_a_mark_that_names_nothing_is_refused(figures, mark, said):
    with pytest.raises(figures.WrongMark, match=said):
        figures.rewrite(f"12<!--= {mark}-->")


def test_a_comment_that_begins_a_line_is_refused(figures):
    with pytest.raises(figures.WrongMark, match="ends the paragraph"):
        figures.rewrite(RATE.replace("<!--", "\n  <!--"))
