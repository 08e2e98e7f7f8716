"""`offpath cost`: rates of a result, wrong input."""

from __future__ import annotations

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.experiments.bill import read_rates
from tests.offpath.conftest import Run
from tests.profiling.runs import PHOTOS, make_compare, make_window


def test_a_cpus_rates_are_not_priced_for_a_gpu_instance(run: Run, tmp_path):
    make_compare().save(tmp_path / "result.json")
    options = ("cost", "--result", tmp_path / "result.json", "--peak-per-s", 10, "--instance")
    assert "g4dn.xlarge" not in run(*options, "c7i.large").out
    assert "has a T4: measure on that instance" in run(*options, "g4dn.xlarge").err


def test_rates_come_from_a_result_file(tmp_path):
    path = tmp_path / "result.json"
    run = make_compare()
    run.variants["dead"] = {}
    run.add(0, "dead", PHOTOS, make_window(0, replies_none=3, latency_ms=[]))
    run.save(path)
    rates, on_gpu, doubts = read_rates(path, None)
    assert rates == {"torchserve-stock": 11.0, "offpath": 121.0}
    assert not on_gpu
    # The doubts of the run go with its rates.
    assert any(it.startswith("spread: the rounds of offpath") for it in doubts)
    with pytest.raises(ExpectedError, match="'photos-55k'.*one of photos"):
        read_rates(path, "photos-55k")
