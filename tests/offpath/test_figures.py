"""Measured figures in README.md and docs/ are those that the result files print.

    <!-- from door-55k -->                a table below: cells under a heading of `bench show`
    119<!--door-1200k offpath req/s-->    one figure: result, variant, heading
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.offpath.conftest import Run

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "profiling/results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ONE = re.compile(r"([\d.,]+)<!--(\S+) (\S+) ([^>]+?)-->")
TABLE = re.compile(r"<!-- from (\S+) -->\n+((?:\|.*\n)+)")
# Result -> (variant, heading) -> what `bench show` prints.
Printed = dict[str, dict[tuple[str, str], str]]


def split_row(line: str) -> list[str]:
    return [cell.strip(" *`") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


@pytest.fixture(scope="module")
def printed() -> Printed:
    return {}


def read(run: Run, printed: Printed, name: str) -> dict[tuple[str, str], str]:
    """Returns the cells of a result's tables; the first of a heading counts."""
    if name not in printed:
        cells: dict[tuple[str, str], str] = {}
        headings: list[str] = []
        for line in run("bench", "show", "--markdown", RESULTS / f"{name}.json").out.splitlines():
            if not line.startswith("|"):
                headings = []
            elif not headings:
                headings = split_row(line)
            else:
                variant, *row = split_row(line)
                for heading, cell in zip(headings[1:], row):
                    cells.setdefault((variant, heading), cell)
        printed[name] = cells
    return printed[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_marked_figures_are_those_of_the_result(page: Path, run: Run, printed: Printed) -> None:
    text = page.read_text(encoding="utf-8")
    for figure, name, variant, heading in ONE.findall(text):
        assert read(run, printed, name)[variant, heading] == figure, (name, variant, heading)
    for name, table in TABLE.findall(text):
        cells = read(run, printed, name)
        headings, _, *rows = map(split_row, table.splitlines())
        compared = 0
        for variant, *row in rows:
            for heading, cell in zip(headings[1:], row):
                if (variant, heading) in cells:
                    compared += 1
                    assert cell == cells[variant, heading], (name, variant, heading)
        assert compared >= 2 * len(rows), f"{name}: the table shows other variants or headings"


def test_no_rate_or_memory_in_the_readme_is_without_its_result() -> None:
    text = re.sub(r"<!-- from.*?\n\n", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)
    without = re.findall(r"[\d.,]+ (?:requests per second|MB of memory|times)[^\n]*", text)
    assert not without
