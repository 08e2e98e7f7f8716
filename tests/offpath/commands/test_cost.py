"""`offpath cost`: options, wrong input, JSON."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from offpath.commands.cost import command
from offpath.errors import ExpectedError
from tests.profiling.runs import make_compare

RATE = ("--rate-per-instance", "ours=100")
PEAK = ("--peak-per-s", "10")
PRICE = ("--hourly-price", "0.5")


def run(*args: str) -> str:
    return CliRunner().invoke(command, args, catch_exceptions=False).output


def test_json_has_instances_and_dollars_per_server():
    content = json.loads(run(*RATE, "--rate-per-instance", "theirs=5", *PEAK, *PRICE, "--json"))
    ours, theirs = content["servers"]
    assert (ours["needed"], theirs["needed"]) == (1, 3)
    assert (ours["compute_usd"], theirs["compute_usd"]) == (365, 1095)
    assert ours["total_batched_usd"] < ours["total_each_usd"]


def test_the_published_example_prints_both_totals_and_its_assumptions():
    text = run("--example", "published")
    rows = [line.split() for line in text.splitlines()]
    assert ["torchserve", "803.08", "803"] in rows
    assert ["triton", "384.44", "384"] in rows
    assert "assumed" in text and "fitted" in text
    said = " ".join(text.split())
    assert "torchserve: a single instance is enough for" in said
    assert "120 requests per minute (2 per second" in said and "$384 per month" in said


def test_a_cpus_rates_are_not_priced_for_a_gpu_instance(tmp_path):
    make_compare().save(tmp_path / "result.json")
    options = ("--result", str(tmp_path / "result.json"), *PEAK)
    assert "g4dn.xlarge" not in run(*options, "--instance", "c7i.large")
    with pytest.raises(ExpectedError, match="on a CPU.*has a T4.*--rate-per-instance"):
        run(*options, "--instance", "g4dn.xlarge")


def test_a_result_is_priced_with_the_doubts_about_its_figures(tmp_path):
    make_compare().save(tmp_path / "result.json")
    shown = run("--result", str(tmp_path / "result.json"), *PEAK, *PRICE)
    assert "spread: the rounds of offpath" in " ".join(shown.split())
