from __future__ import annotations

import math
import re

import pytest

from offpath.profiling.report.charts import (
    LETTER_WIDTH,
    Dot,
    Series,
    list_ticks,
    make_axis,
    nice_step,
    place_x_ticks,
    x_axis,
)
from offpath.profiling.report.line_charts import (
    histograms,
    line_chart,
    pareto_front,
    scatter,
)


def test_a_linear_axis_begins_at_nothing_and_holds_every_value():
    axis = make_axis([3.0, 97.0], 0, 100, log=False)
    assert axis.low == 0 and axis.high >= 97
    assert axis.place(0) == 0 and axis.place(axis.high) == 100


def test_a_logarithmic_axis_has_equal_steps_for_equal_ratios():
    axis = make_axis([1.0, 1000.0], 0, 300, log=True)
    steps = [axis.place(10.0**n) for n in range(4)]
    assert steps[1] - steps[0] == pytest.approx(steps[3] - steps[2], abs=0.2)


@pytest.mark.parametrize(
    ("least", "step"), [(0.11, 0.2), (1.0, 1.0), (2.1, 5.0), (7.0, 10.0)]
)
def test_steps_are_round(least, step):
    assert nice_step(least) == pytest.approx(step)


@pytest.mark.parametrize("values", [[], [0.0], [math.nan], [5.0]], ids=repr)
@pytest.mark.parametrize("log", [False, True])
def test_axes_of_little_data_still_have_an_extent(values, log):
    axis = make_axis(values, 0, 100, log)
    assert axis.high > axis.low and math.isfinite(axis.place(1.0))
    assert list_ticks(axis)


def test_texts_of_ticks_do_not_touch():
    values = [float(2**n) for n in range(12)] + [1100.0, 1200.0]
    placed = place_x_ticks(x_axis(values, True), sorted(values))
    for (left, a), (right, b) in zip(placed, placed[1:]):
        assert right - left >= (len(a) + len(b)) / 2 * LETTER_WIDTH


def test_users_are_the_ticks_of_a_sweep():
    series = [Series("offpath", [(1, 10), (2, 20), (256, 400)])]
    html = line_chart(series, "users", "req/s", title="rate", log_x=True)
    assert [int(t) for t in re.findall(r'middle">(\d+)</text>', html)] == [1, 2, 256]


def test_points_without_a_place_are_left_out():
    series = [Series("a", [(1, math.nan), (2, 0.0), (4, 8.0)])]
    html = line_chart(series, "x", "y", title="t", log_x=True, log_y=True)
    assert html.count("<circle") == 1 and "nan" not in html


def test_more_lines_than_colours_are_told_apart():
    series = [Series(str(n), [(1, n), (2, n)]) for n in range(16)]
    html = line_chart(series, "x", "y", title="t")
    styles = re.findall(
        r'<li class="(s\d)">.*?(<circle|<path class="filled" d="[^0-9]*)', html
    )
    looks = re.findall(r'<g class="(s\d)"><polyline class="([a-z ]+)"', html)
    assert len(set(looks)) == 16 and len(styles) == 16


def test_the_front_holds_those_that_none_beats():
    dots = [
        Dot(10, 5, "a"),
        Dot(20, 9, "b"),
        Dot(15, 9, "beaten"),
        Dot(20, 30, "slower"),
        Dot(5, 5, "less"),
    ]
    assert [dot.label for dot in pareto_front(dots)] == ["a", "b"]
    assert pareto_front([]) == []


def test_a_scatter_numbers_the_front_and_shows_the_bound():
    dots = [Dot(10, 5, "a"), Dot(20, 9, "b", strong=True), Dot(15, 9, "c")]
    html = scatter(
        dots, "x", "y", title="t", front=pareto_front(dots), bound=(7, "at most 7")
    )
    assert re.findall(r'class="number"[^>]*>(\d)<', html) == ["1", "2"]
    assert "at most 7" in html and html.count("<title>") == 3


def test_a_histogram_counts_every_value_once():
    values = [float(n % 17 + 1) for n in range(200)]
    (html,) = histograms({"a": values}, "ms", "batches")
    assert sum(int(n) for n in re.findall(r"<rect[^>]*><title>(\d+)", html)) == 200


def test_histograms_share_one_axis():
    charts = histograms(
        {"fast": [10.0] * 9, "slow": [200.0] * 9, "none": []}, "ms", "n"
    )
    assert len(charts) == 2
    ticks = [re.findall(r'middle">([\d,]+)</text>', chart) for chart in charts]
    assert ticks[0] == ticks[1]


def test_no_values_no_histogram():
    assert histograms({"a": []}, "ms", "n") == []
