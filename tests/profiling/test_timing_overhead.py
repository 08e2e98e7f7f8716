"""What timings cost, computed from batches with and without them."""

from __future__ import annotations

import pytest

from offpath.profiling.in_process.profile_result import BatchSample
from offpath.profiling.in_process.timing_overhead import (
    BLOCK,
    is_off,
    split_batches,
    summarise_overhead,
)


def make_batches(count: int, on_s: float, off_s: float) -> list[BatchSample]:
    return [
        BatchSample(8, off_s if is_off(number) else on_s, {}) for number in range(count)
    ]


def test_both_meet_the_same_pictures_equally_often():
    for cycle in (1, 2, 4):
        on, off = (
            [n % cycle for n in range(BLOCK) if is_off(n) is w] for w in (False, True)
        )
        assert sorted(on) == sorted(off)


def test_the_cost_is_the_ratio_of_like_blocks():
    batches = make_batches(32, on_s=1.02, off_s=1.0)
    assert summarise_overhead(batches) == pytest.approx((0.02, 0.0))


def test_a_disturbed_block_does_not_move_the_cost():
    batches = make_batches(40, on_s=1.0, off_s=1.0)
    batches[3] = BatchSample(8, 50.0, {})
    cost, _ = summarise_overhead(batches)
    assert cost == pytest.approx(0.0)


def test_batches_are_split_in_halves():
    on, off = split_batches(make_batches(16, on_s=2.0, off_s=1.0))
    assert {sample.total_s for sample in on} == {2.0} and len(on) == 8
    assert {sample.total_s for sample in off} == {1.0} and len(off) == 8


def test_too_few_batches_are_an_error():
    with pytest.raises(ValueError, match="at least 16"):
        summarise_overhead(make_batches(15, 1.0, 1.0))
