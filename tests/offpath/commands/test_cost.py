"""`offpath cost`: the bill, rates of a result, wrong input."""

from __future__ import annotations

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.experiments.bill import Bill, load_prices, read_rates
from tests.offpath.conftest import Run
from tests.profiling.runs import PHOTOS, make_compare, make_window


def test_a_bill_has_as_many_instances_as_the_peak_needs_and_the_log():
    prices = load_prices()
    hourly = prices.hourly("g4dn.xlarge")
    # 730 hours of 0.526 $; 5.256 million puts of 0.005 $ per 1,000, and 0.08 $ for storage.
    bill = Bill("triton", 183.0, 2.0, hourly, prices)
    assert round(bill.compute_usd, 2) == 383.98
    assert round(bill.each_usd, 2) == 26.36
    assert round(bill.compute_usd + bill.batched_usd, 2) == 384.44
    # 30 % of an instance stay free.
    assert [Bill("", 10.0, peak, hourly, prices).needed for peak in (7.0, 7.1)] == [1, 2]


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
