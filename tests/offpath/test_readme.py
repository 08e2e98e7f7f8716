"""The README's table of speeds is the committed run's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.offpath.conftest import Run

ROOT = Path(__file__).parents[2]
# Rows of the README's table, in order -> variants of the run.
VARIANTS = ("offpath", "torchserve-stock", "torchserve-fixed", "triton")
VARIANTS += ("triton-offpath-decode",)


def read_numbers(text: str) -> list[float]:
    return [float(one) for one in re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))]


def test_the_tables_figures_are_those_of_the_run(run: Run) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!1\.2 MB|\|)(.+?) \|$", readme, re.MULTILINE)
    table = [row.split(" | ") for row in rows if row.count(" | ") == 4]
    assert len(table) == len(VARIANTS)
    shown = run("bench", "show", ROOT / "profiling/results/compare-turns-1200k.json")
    printed: dict[str, list[list[float]]] = {}
    for line in shown.out.splitlines():
        name, _, figures = line.strip().partition(" ")
        printed.setdefault(name, []).append(read_numbers(figures))
    for variant, (_, rate, ratio, cpu, latency) in zip(VARIANTS, table):
        rates, latencies, cpus = printed[variant][:3]
        quoted = [*read_numbers(rate.replace("-", " ")), *read_numbers(ratio)]
        assert quoted == pytest.approx(rates[:4], abs=0.51), variant
        assert read_numbers(cpu) == pytest.approx(cpus[:2], abs=0.051), variant
        assert read_numbers(latency) == [latencies[0], latencies[3]], variant
