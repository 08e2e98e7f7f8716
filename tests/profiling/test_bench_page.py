from __future__ import annotations

import pytest

from offpath.profiling.core.result import Failure, LimitMeasurement, Start
from offpath.profiling.report.bench_page import (
    SweepPoint,
    make_sweep_sections,
    write_bench_page,
)
from tests.profiling.results import make_measurement, make_result
from tests.support.pages import list_requests, read_page


@pytest.fixture
def page(tmp_path) -> str:
    result = make_result(
        starts=[
            Start(0, "offpath", 12.5, 40.0, 20.0),
            Start(0, "stock", 15.0, 80.0, None),
        ],
        failures=[Failure(1, "bentoml", "it died")],
        not_run={"tf-serving": "no binary here"},
    )
    write_bench_page(result, tmp_path / "page.html", "torchserve-stock")
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def find_text(html: str) -> str:
    return " ".join(" ".join(read_page(html).texts).split())


def test_rates_ratios_limits_and_percentiles_are_on_the_page(page):
    text = find_text(page)
    assert "120 (10.9 x)" in text
    assert "decode alone, 200 a second" in text and "allow 150 (the limit)" in text
    assert "photos: latency" in text and "p99 ms" in text and "50.5" in text


def test_each_engine_has_its_limit_in_words(tmp_path):
    limits = [
        LimitMeasurement(0, "decode", "photos", 2000, 10.0, 20.0),
        LimitMeasurement(0, "forward", None, 500, 10.0, 20.0),
        LimitMeasurement(0, "forward", None, 1000, 10.0, 20.0, engine="openvino"),
    ]
    write_bench_page(make_result(limits=limits), tmp_path / "page.html", None)
    text = find_text((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "allow 40.0 by eager, 66.7 by openvino (each server's limit" in text


def test_servers_that_did_not_run_and_why_are_on_the_page(page):
    text = find_text(page)
    assert "not run: tf-serving: no binary here" in text
    assert "left out after a failure: bentoml: it died" in text


def test_cold_starts_are_on_the_page(page):
    assert "offpath 1 12.5 40.0 20.0" in find_text(page)


def test_a_page_loads_nothing(page):
    assert list_requests(page) == []


def test_a_run_that_was_cut_short_is_still_a_page(tmp_path):
    for measurements in (
        [],
        [make_measurement(0, "stock", 0, latencies_ms=[], statuses={"503": 9})],
    ):
        result = make_result(measurements=measurements, limits=[])
        write_bench_page(result, tmp_path / "page.html", None)
        assert list_requests((tmp_path / "page.html").read_text()) == []


def test_a_sweep_shows_rate_latency_and_failures_of_each_server():
    points = [
        SweepPoint(server, users, 10.0 * users, 5.0, 9.0, users // 64)
        for server in ("offpath", "stock")
        for users in (1, 16, 256)
    ]
    (section,) = make_sweep_sections(points)
    titles = ("Requests a second", "Median latency", "p95 latency", "Failed responses")
    assert all(title in section.body for title in titles)
    assert section.body.count("<circle") == section.body.count("<path") >= 12
