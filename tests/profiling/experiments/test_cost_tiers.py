"""GPU hosts alone or with CPU hosts that decode; the arithmetic and the command."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from offpath.commands.cost import command
from offpath.handler.errors import ExpectedError, WrongOption
from offpath.profiling.experiments.cost import Demand
from offpath.profiling.experiments.cost_tiers import (
    Picture,
    compute_fleets,
    draw_conclusion,
)
from offpath.profiling.experiments.prices import load_prices

PRICES = load_prices()
# 20 ms of the GPU host's 4 vCPUs are 200 a second; 2 ms leave the GPU's own 1500.
LARGE = Picture(gpu_per_s=1500, cpu_ms=20, decode_cpu_ms=20, model_cpu_ms=2)
SMALL = Picture(gpu_per_s=1500, cpu_ms=2, decode_cpu_ms=4, model_cpu_ms=2)
OPTIONS = "--instance g4dn.xlarge --decode-instance c7i.xlarge --peak-per-s 1400"
PER_PICTURE = "--gpu-rate 1500 --cpu-ms 20 --decode-cpu-ms 20 --model-cpu-ms 2"


def compare(picture: Picture, peak: float):
    demand = Demand(peak, peak, head_room=0)
    return compute_fleets(picture, "g4dn.xlarge", "c7i.xlarge", demand, PRICES)


def test_hosts_are_counted_by_what_limits_each_of_them():
    alone, tiers = compare(LARGE, 1400)
    assert (alone.gpu_per_s, alone.gpu_hosts, alone.cpu_hosts) == (200, 7, 0)
    assert (tiers.gpu_per_s, tiers.gpu_hosts) == (1500, 1)
    assert (tiers.cpu_per_s, tiers.cpu_hosts) == (200, 7)
    assert alone.usd == pytest.approx(730 * 7 * 0.526)
    assert tiers.usd == pytest.approx(730 * (0.526 + 7 * 0.1785))
    assert "52 % less than g4dn.xlarge alone" in draw_conclusion([alone, tiers])


def test_small_pictures_leave_the_gpu_host_alone_the_cheaper_one():
    alone, tiers = compare(SMALL, 1400)
    assert alone.usd < tiers.usd
    assert draw_conclusion([alone, tiers]).startswith("g4dn.xlarge alone")


def test_a_host_without_a_number_of_vcpus_and_a_time_of_nothing_are_refused():
    demand = Demand(1, 1)
    with pytest.raises(ExpectedError, match="no number of vCPUs for instance 'x1'"):
        compute_fleets(LARGE, "g4dn.xlarge", "x1", demand, PRICES)
    with pytest.raises(ExpectedError, match="cpu_ms is 0"):
        Picture(1500, 0, 20, 2)


def test_the_command_answers_as_json_and_names_the_options_that_it_misses():
    runner = CliRunner()
    asked = [*OPTIONS.split(), *PER_PICTURE.split(), "--json"]
    answer = json.loads(runner.invoke(command, asked, catch_exceptions=False).output)
    assert [fleet["gpu_hosts"] for fleet in answer["fleets"]] == [10, 2]
    assert "not measured here" in answer["warnings"][0]
    with pytest.raises(WrongOption, match="needs --cpu-ms, --model-cpu-ms too"):
        few = [*OPTIONS.split(), "--gpu-rate", "1500", "--decode-cpu-ms", "20"]
        runner.invoke(command, few, catch_exceptions=False)
