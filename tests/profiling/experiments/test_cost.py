"""Instances and dollars from rates and prices; the published bill out of its inputs."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments import cost_published
from offpath.profiling.experiments.cost import (
    GB,
    Demand,
    LogShape,
    cost_all,
    cost_server,
    count_instances,
)
from offpath.profiling.experiments.cost_rates import read_rates
from offpath.profiling.experiments.cost_report import document_of, draw_conclusions
from offpath.profiling.experiments.prices import PRICES_FILE, load_prices
from offpath.profiling.report.terminal import print_document
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
    assert count_instances(peak, rate, head_room) == expected


def test_the_published_bill_comes_out_of_its_inputs():
    totals = cost_published.compute_totals(cost_published.compute_costs(PRICES))
    assert {name: round(usd) for name, usd in totals.items()} == {
        "torchserve": 803,
        "triton": 384,
    }


def test_the_published_bill_follows_the_price_of_the_instance():
    dearer = replace(PRICES, instances={"g4dn.xlarge": 2 * 0.526})
    costs = cost_published.compute_costs(dearer)
    totals = cost_published.compute_totals(costs)
    assert totals["torchserve"] == pytest.approx(803.08 + 2 * 383.98, abs=0.01)
    assert totals["triton"] == pytest.approx(384.44 + 383.98, abs=0.01)


def test_the_published_example_says_that_a_single_instance_would_have_done():
    costs = cost_published.compute_costs(PRICES)
    lines = draw_conclusions(costs, cost_published.DEMAND)
    assert lines[0].startswith("torchserve: a single instance would have done")
    assert "120 requests a minute are 2 a second" in lines[0]
    assert "$384 a month" in lines[0]


def test_puts_and_storage_are_priced_by_hand():
    demand = Demand(peak_per_s=10, mean_per_s=1, hours=730)
    shape = LogShape(
        record_bytes=1000,
        retention_days=730 / 24,
        records_per_object=100,
        compressed_share=0.5,
    )
    cost = cost_server("any", 100.0, 1.0, demand, shape, PRICES)
    predictions = 730 * 3600
    assert cost.compute_usd == 730
    assert cost.log_each.puts == predictions
    assert cost.log_each.requests_usd == pytest.approx(predictions * 5e-6)
    assert cost.log_each.storage_usd == pytest.approx(predictions * 1000 / GB * 0.023)
    assert cost.log_batched.puts == predictions / 100
    assert cost.log_batched.storage_usd == pytest.approx(cost.log_each.storage_usd / 2)
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
    assert LogShape().fill_objects(mean_per_s, 1) == pytest.approx(expected)


def test_paid_instances_replace_the_needed_ones():
    demand = Demand(peak_per_s=2, mean_per_s=2, min_instances=2)
    rates = {"a": 47.0, "b": 183.0}
    a, b = cost_all(rates, 0.5, demand, LogShape(), PRICES, {"b": 3})
    assert (a.needed, a.paid, b.needed, b.paid) == (1, 2, 1, 3)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Demand(0, 1), id="zero-peak"),
        pytest.param(lambda: Demand(-1, 1), id="negative-peak"),
        pytest.param(lambda: Demand(math.nan, 1), id="nan-peak"),
        pytest.param(lambda: Demand(1, 2), id="mean-above-peak"),
        pytest.param(lambda: Demand(1, 1, head_room=1), id="all-head-room"),
        pytest.param(lambda: Demand(1, 1, head_room=-0.1), id="negative-head-room"),
        pytest.param(lambda: Demand(1, 1, hours=0), id="no-hours"),
        pytest.param(lambda: Demand(1, 1, min_instances=0), id="no-instances"),
        pytest.param(lambda: LogShape(record_bytes=0), id="no-record"),
        pytest.param(lambda: LogShape(retention_days=-1), id="negative-retention"),
        pytest.param(lambda: LogShape(records_per_object=0), id="empty-object"),
        pytest.param(
            lambda: cost_server("x", 0, 1, Demand(1, 1), LogShape(), PRICES),
            id="zero-rate",
        ),
        pytest.param(
            lambda: cost_server("x", 1, -1, Demand(1, 1), LogShape(), PRICES),
            id="negative-price",
        ),
        pytest.param(
            lambda: cost_all({}, 1, Demand(1, 1), LogShape(), PRICES, {}),
            id="no-server",
        ),
        pytest.param(
            lambda: cost_all({"a": 1}, 1, Demand(1, 1), LogShape(), PRICES, {"b": 1}),
            id="paid-for-an-unknown-server",
        ),
    ],
)
def test_what_cannot_be_priced_is_refused(make):
    with pytest.raises(ExpectedError, match="expected"):
        make()


def test_rates_come_from_a_result_file(tmp_path):
    path = tmp_path / "result.json"
    run = make_compare()
    run.variants["dead"] = {}
    run.add(0, "dead", PHOTOS, make_window(0, replies_none=3, latency_ms=[]))
    run.save(path)
    rates = {"torchserve-stock": 11.0, "offpath": 121.0}
    assert read_rates(path, None) == (rates, False)
    with pytest.raises(ExpectedError, match="'photos-55k'.*one of photos"):
        read_rates(path, "photos-55k")


def test_a_result_with_readings_of_a_gpu_is_a_gpus(tmp_path):
    run = make_compare()
    run.add(3, "offpath", PHOTOS, make_window(1000, gpu__memory_bytes=1e9))
    run.save(tmp_path / "result.json")
    assert read_rates(tmp_path / "result.json", None).on_gpu


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
    assert replace(PRICES, gpus=None).find_mixture(on_gpu, instance) is None


def test_every_priced_gpu_instance_is_known_as_one():
    assert PRICES.gpus is not None
    assert {name for name in PRICES.instances if name[0] in "gp"} == set(PRICES.gpus)


def test_prices_say_when_and_where():
    assert PRICES.as_of and PRICES.region == "us-east-1"
    assert all("https://" in source for source in PRICES.sources.values())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("as_of: 2026", "lack 'sources'|lack 'region'", id="missing-key"),
        pytest.param("[", "cannot read", id="no-yaml"),
        pytest.param(
            PRICES_FILE.read_text().replace("0.526", "-1"), "-1", id="negative-price"
        ),
    ],
)
def test_a_price_file_that_is_none_is_refused(tmp_path, content, message):
    path = tmp_path / "prices.yaml"
    path.write_text(content)
    with pytest.raises(ExpectedError, match=message):
        load_prices(path)


def test_the_tables_fit_80_columns_with_every_figure():
    demand = Demand(peak_per_s=500, mean_per_s=500)
    rates = {"triton-offpath-decode": 796.2, "torchserve-stock": 83.4}
    costs = cost_all(rates, 0.085, demand, LogShape(), PRICES, {})
    console = Console(width=80, file=io.StringIO())
    print_document(document_of(costs, demand, PRICES), console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    rows = [line.split() for line in text.splitlines() if "torchserve-stock" in line]
    assert rows[0][1:] == ["83.4", "9", "9", "67", "558.45"]
    assert [row[-3:] for row in rows[1:]] == [
        [f"{log.usd:,.2f}", f"{558.45 + log.usd:,.2f}", f"{per_million:.2f}"]
        for log in (costs[1].log_each, costs[1].log_batched)
        for per_million in [(558.45 + log.usd) / 1314]
    ]


def test_the_plain_question_needs_neither_torch_nor_polars():
    code = (
        "import sys; from offpath.cli import main;"
        "main(['cost', '--example', 'published'], standalone_mode=False);"
        "sys.exit(bool({'torch', 'polars', 'msgspec', 'matplotlib'} & set(sys.modules)))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True).returncode
        == 0
    )
