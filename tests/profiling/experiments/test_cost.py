"""Instances and dollars from rates and prices; the published bill."""

from __future__ import annotations

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.experiments.cost import (
    DAYS_PER_MONTH,
    GB,
    Demand,
    cost_server,
    fill_objects,
    load_prices,
    read_rates,
)
from tests.profiling.runs import PHOTOS, make_compare, make_window

PRICES = load_prices()


@pytest.mark.parametrize(
    ("peak", "rate", "head_room", "expected"),
    [
        pytest.param(2, 47, 0.3, 1, id="far-below-one"),
        pytest.param(7, 10, 0.3, 1, id="exactly-one"),
        pytest.param(7.01, 10, 0.3, 2, id="a-little-more-than-one"),
        pytest.param(100, 10, 0, 10, id="no-head-room"),
    ],
)
def test_instances_leave_the_head_room(peak, rate, head_room, expected):
    assert Demand(peak, peak, head_room).count_needed(rate) == expected


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


@pytest.mark.parametrize(
    ("mean_per_s", "expected"),
    [
        pytest.param(0.001, 1, id="rare-records-are-objects-of-their-own"),
        pytest.param(4, 120, id="sealed-by-age"),
        pytest.param(1e6, 8 * 2**20 / 700, id="sealed-by-size"),
    ],
)
def test_objects_fill_as_the_spool_seals_them(mean_per_s, expected):
    assert fill_objects(mean_per_s, 1) == pytest.approx(expected)


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


@pytest.mark.parametrize(
    ("on_gpu", "instance", "said"),
    [
        pytest.param(False, "g4dn.xlarge", "on a CPU, g4dn.xlarge has a T4", id="cpu"),
        pytest.param(True, "c7i.large", "with a GPU, c7i.large has none", id="gpu"),
        pytest.param(True, "g4dn.xlarge", None, id="both-gpu"),
        pytest.param(False, "c7i.large", None, id="both-cpu"),
        pytest.param(False, None, None, id="a-price-in-numbers"),
    ],
)
def test_rates_of_another_kind_of_machine_are_a_mixture(on_gpu, instance, said):
    found = PRICES.find_mixture(on_gpu, instance)
    assert (found is None) if said is None else (found is not None and said in found)
