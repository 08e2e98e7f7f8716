from __future__ import annotations

import math

import pytest

from offpath.profiling.in_process.profile_result import BatchSample
from offpath.profiling.in_process.profile_summary import (
    find_hot_functions,
    find_hot_lines,
    find_typical_batch,
    group_lines,
    summarise_buckets,
    summarise_stages,
)
from tests.profiling.profiles import make_batch, make_function, make_handler, make_line


def test_stages_and_other_add_up_to_the_total():
    rows = summarise_stages(make_handler().batches)
    *parts, total = rows
    assert [row.stage for row in rows] == ["decode", "inference", "other", "total"]
    assert sum(row.mean_s for row in parts) == pytest.approx(total.mean_s)
    assert sum(row.image_mean_s for row in parts) == pytest.approx(total.image_mean_s)
    assert sum(row.share for row in parts) == pytest.approx(1)


def test_figures_are_exact_for_known_batches():
    decode, inference, other, total = summarise_stages(
        [make_batch(n, 5, other_ms=1, size=4) for n in range(1, 102)]
    )
    assert decode.count == 101
    assert decode.p50_s == pytest.approx(0.051)
    assert decode.p95_s == pytest.approx(0.096)
    assert decode.p99_s == pytest.approx(0.100)
    assert decode.image_p50_s == pytest.approx(0.051 / 4)
    assert inference.mean_s == pytest.approx(0.005)
    assert other.mean_s == pytest.approx(0.001)
    assert total.mean_s == pytest.approx(0.057)


def test_every_image_weighs_alike_in_batches_of_unlike_sizes():
    rows = summarise_stages(
        [make_batch(10, 0, 0, size=1), make_batch(10, 0, 0, size=9)]
    )
    assert rows[-1].image_mean_s == pytest.approx(0.020 / 10)
    assert rows[-1].image_p50_s == pytest.approx((0.010 / 1 + 0.010 / 9) / 2)


def test_overlapping_stages_leave_a_negative_other_that_still_adds_up():
    rows = summarise_stages([BatchSample(1, 0.010, {"a": 0.008, "b": 0.004})])
    assert rows[-2].mean_s == pytest.approx(-0.002)
    assert sum(row.mean_s for row in rows[:-1]) == pytest.approx(0.010)


def test_a_stage_that_only_some_batches_have_counts_as_nothing_in_the_others():
    rows = summarise_stages(
        [BatchSample(1, 1.0, {"a": 1.0}), BatchSample(1, 1.0, {"b": 0.5})]
    )
    assert {row.stage: row.mean_s for row in rows} == {
        "a": 0.5,
        "b": 0.25,
        "other": 0.25,
        "total": 1,
    }


def test_stages_that_never_ran_are_left_out():
    rows = summarise_stages([BatchSample(1, 1.0, {"a": 1.0, "transfer": 0.0})])
    assert [row.stage for row in rows] == ["a", "other", "total"]


def test_device_time_stands_beside_the_stage_that_has_it():
    batch = BatchSample(1, 1.0, {"inference": 0.5, "decode": 0.1}, {"inference": 0.4})
    rows = {row.stage: row for row in summarise_stages([batch])}
    assert rows["inference"].device_mean_s == pytest.approx(0.4)
    assert rows["decode"].device_mean_s is None


def test_no_batches_no_rows():
    assert summarise_stages([]) == []
    assert find_typical_batch([]) is None


def test_the_typical_batch_is_nearest_the_median_of_the_usual_size():
    usual = [make_batch(n, 5) for n in (10, 11, 12, 50, 60)]
    small = [make_batch(12, 5, size=1)]
    assert find_typical_batch([*small, *usual]) is usual[2]


def test_buckets_add_up_and_the_largest_stands_first():
    functions = [
        make_function("forward", "forward", 1.0),
        make_function("open", "file I/O", 2.0),
        make_function("read", "file I/O", 1.0),
    ]
    first, second = summarise_buckets(functions)
    assert (first.bucket, first.own_s, first.calls) == ("file I/O", 3.0, 200)
    assert first.share == pytest.approx(0.75)
    assert math.isclose(first.share + second.share, 1)


def test_hot_functions_are_those_with_the_largest_cumulative_time():
    functions = [
        make_function(str(n), "other", 0.1, cumulative_s=float(n)) for n in range(9)
    ]
    assert [f.name for f in find_hot_functions(functions, 2)] == ["8", "7"]


def test_cold_lines_are_left_out_and_functions_that_never_ran_too():
    slow = make_line(3, 1.0, "sleep()")
    cold = make_line(4, 0.001, "pass")
    never = make_line(9, 0.0, "unused()", function="other", hits=0)
    (group,) = group_lines([slow, cold, never])
    assert group == [slow, cold]
    assert find_hot_lines(group) == [slow]
