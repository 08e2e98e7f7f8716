"""Instances and dollars from rates and prices; the published bill."""

from __future__ import annotations

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.experiments.cost import (
    DAYS_PER_MONTH,
    GB,
    Demand,
    cost_server,
    load_prices,
    read_rates,
)
from tests.profiling.runs import PHOTOS, make_compare, make_window

PRICES = load_prices()


def test_puts_and_storage_are_priced_as_worked_out_manually():
    demand = Demand(peak_per_s=10, mean_per_s=1)
    cost = cost_server("any", 100.0, 1.0, demand, PRICES)
    predictions = 730 * 3600
    assert cost.compute_usd == 730
    assert cost.log_each.puts == predictions
    assert cost.log_each.requests_usd == pytest.approx(predictions * 5e-6)
    kept_months = 30 / DAYS_PER_MONTH
    assert cost.log_each.storage_usd == pytest.approx(predictions * 700 / GB * 0.023 * kept_months)
    # Each of two workers seals an object of half a minute's records every minute.
    assert cost.log_batched.puts == predictions / 30
    assert cost.log_batched.storage_usd == pytest.approx(cost.log_each.storage_usd / 4)
    total_usd = 730 + cost.log_each.usd
    assert cost.per_million_usd(cost.log_each) == pytest.approx(total_usd / 2.628)


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
