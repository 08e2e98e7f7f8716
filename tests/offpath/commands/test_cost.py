"""`offpath cost`: options, wrong input."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from offpath.commands.cost import command
from offpath.errors import ExpectedError
from tests.profiling.runs import make_compare

PEAK = ("--peak-per-s", "10")


def run(*args: str) -> str:
    return CliRunner().invoke(command, args, catch_exceptions=False).output


def test_the_published_example_prints_both_totals_and_its_assumptions():
    text = run("--example", "published")
    rows = [line.split() for line in text.splitlines()]
    assert ["torchserve", "803.08", "803"] in rows
    assert ["triton", "384.44", "384"] in rows
    assert "assumed" in text and "fitted" in text


def test_a_cpus_rates_are_not_priced_for_a_gpu_instance(tmp_path):
    make_compare().save(tmp_path / "result.json")
    options = ("--result", str(tmp_path / "result.json"), *PEAK)
    assert "g4dn.xlarge" not in run(*options, "--instance", "c7i.large")
    with pytest.raises(ExpectedError, match="on a CPU.*has a T4.*--rate-per-instance"):
        run(*options, "--instance", "g4dn.xlarge")
