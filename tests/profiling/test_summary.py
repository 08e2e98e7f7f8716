from __future__ import annotations

import math

import numpy as np
import pytest

from offpath.profiling.core.result import LimitMeasurement
from offpath.profiling.core.summary import drawn_limit, percentile, summarise
from offpath.profiling.report.report import find_noisy_limits, find_warnings
from tests.profiling.results import make_measurement, make_result


def test_percentiles_are_exact_on_known_data():
    values = [float(n) for n in range(1, 102)]
    assert [percentile(values, q) for q in (0, 50, 90, 95, 99, 100)] == [
        1,
        51,
        91,
        96,
        100,
        101,
    ]
    assert percentile([7.0], 99) == 7.0
    assert math.isnan(percentile([], 50))


def test_percentiles_are_numpys_whatever_the_order():
    values = np.random.default_rng(0).exponential(size=997).tolist()
    for percent in (50, 90, 95, 99, 99.9):
        assert percentile(values, percent) == pytest.approx(
            np.percentile(values, percent)
        )


def test_a_row_has_median_rate_ratio_and_shares_of_the_limits():
    stock, offpath = summarise(make_result(), "torchserve-stock")
    assert (stock.rate, stock.rate_low, stock.rate_high) == (11, 10, 12)
    assert offpath.rate == 120
    assert offpath.ratio == pytest.approx(120 / 11)
    assert offpath.decode_share == pytest.approx(120 / 200)
    # 1 / (1 / 200 + 1 / 600) = 150 images a second.
    assert offpath.limit_share == pytest.approx(120 / 150)
    # 10 s of the workers' CPU over 1000, 1500 and 1200 replies.
    assert offpath.cpu_ms["workers"] == pytest.approx(10_000 / 1200)
    assert offpath.latency_ms[50] == 50.5


def test_the_line_in_a_chart_is_decoding_unless_the_forward_is_most_of_the_work():
    assert drawn_limit(make_result(), "photos") == (200, "decode alone")
    limits = [
        LimitMeasurement(0, "decode", "photos", 2000, 10.0, 20.0),
        LimitMeasurement(0, "forward", None, 500, 10.0, 20.0),
        LimitMeasurement(0, "forward", None, 1000, 10.0, 20.0, engine="auto"),
    ]
    # By the quicker engine: 1 / (1 / 200 + 1 / 100).
    rate, name = drawn_limit(make_result(limits=limits), "photos")
    assert rate == pytest.approx(200 / 3) and name == "decode + forward"
    assert drawn_limit(make_result(limits=[]), "photos") is None


def test_side_by_side_a_ratio_is_the_median_of_the_rounds_ratios():
    measurements = [
        make_measurement(round_, server, ok)
        for round_, (stock, ours) in enumerate([(100, 300), (50, 250), (200, 800)])
        for server, ok in (("torchserve-stock", stock), ("offpath", ours))
    ]
    apart = make_result(measurements=measurements)
    together = make_result(measurements=measurements, settings={"side_by_side": True})
    # 300 / 100 by the medians; 3, 5 and 4 round by round.
    assert [summarise(r, "torchserve-stock")[1].ratio for r in (apart, together)] == [
        pytest.approx(3.0),
        pytest.approx(4.0),
    ]
    # A round that the baseline lacks has no ratio.
    together.measurements = [
        m for m in measurements if (m.server, m.round) != ("torchserve-stock", 0)
    ]
    assert summarise(together, "torchserve-stock")[1].ratio == pytest.approx(4.5)


def test_a_thin_server_is_not_measured_by_a_limit_of_decoding():
    servers = {"torchserve-stock": {}, "offpath": {"content": "npy"}}
    _, thin = summarise(make_result(servers=servers), "torchserve-stock")
    assert thin.decode_share is None
    # Forward alone: 600 images a second.
    assert thin.limit_share == pytest.approx(120 / 600)


def test_failures_count_against_the_rate_and_are_shown():
    failed = {"200": 100, "503": 7, "none": 2}
    result = make_result(
        measurements=[make_measurement(0, "torchserve-stock", 0, statuses=failed)]
    )
    (row,) = summarise(result, None)
    assert row.rate == 10 and row.ratio is None
    assert row.failures == {"503": 7, "none": 2}
    assert row.replies == 109
    assert any("7 x 503, 2 x none of 109" in line for line in find_warnings([row]))


def test_noise_is_said():
    busy = {"frontend": 1.0, "workers": 1.0, "generator": 0.1, "other": 5.0}
    result = make_result(
        measurements=[make_measurement(0, "torchserve-stock", 100, cpu_s=busy)],
        limits=[LimitMeasurement(0, "decode", "photos", 10, 10.0, 12.0)],
    )
    assert "0.50 cores were busy" in find_warnings(summarise(result, None))[0]
    assert "only 1.20 of 2 cores" in find_noisy_limits(result)[0]
    assert not find_noisy_limits(make_result())


def test_an_engine_is_held_to_the_limit_of_its_own_forward():
    limits = make_result().limits + [
        LimitMeasurement(0, "forward", None, 12000, 10.0, 20.0, "openvino int8")
    ]
    servers = {"torchserve-stock": {}, "offpath": {"engine": "openvino int8"}}
    stock, ours = summarise(make_result(limits=limits, servers=servers), None)
    # 200 decoded a second, with 600 or 1,200 forwards a second.
    assert stock.limit_share == pytest.approx(11 * (1 / 200 + 1 / 600))
    assert ours.limit_share == pytest.approx(120 * (1 / 200 + 1 / 1200))
