"""Two workers of one port, by a clock that is set manually."""

from __future__ import annotations

import pytest

from offpath.serving.granian.balance import TICK_S, Balance, share_numbers
from tests.support.clock import Clock


@pytest.mark.parametrize(
    ("ours", "theirs", "ended"),
    [
        pytest.param(8, 0, 4, id="half-of-them"),
        pytest.param(8, 6, 1, id="half-of-the-difference"),
        pytest.param(6, 8, 0, id="the-other-has-more"),
        pytest.param(1, 0, 0, id="a-lone-client"),
    ],
)
def test_a_worker_with_more_requests_ends_half_of_the_difference(
    ours: int, theirs: int, ended: int
) -> None:
    clock, means = Clock(), share_numbers(2)
    balance, other = Balance(means, 0, [1], clock), Balance(means, 1, [0], clock)
    balance.add(ours)
    other.add(theirs)
    clock.pass_s(TICK_S)
    other.compare()
    balance.compare()
    assert balance.surplus == ended


def test_requests_count_by_the_time_they_lasted() -> None:
    clock, means = Clock(), share_numbers(2)
    balance = Balance(means, 0, [1], clock)
    Balance(means, 1, [0], clock)
    balance.add(8)
    clock.pass_s(TICK_S / 4)
    balance.add(-8)
    clock.pass_s(TICK_S * 3 / 4)
    balance.compare()
    assert (means[0], balance.surplus) == (2.0, 1)
    clock.pass_s(TICK_S)
    balance.compare()
    assert (means[0], balance.surplus) == (0.0, 0)


def test_no_connection_is_sent_to_a_worker_that_is_not_ready() -> None:
    clock, means = Clock(), share_numbers(2)
    balance = Balance(means, 0, [1], clock)
    balance.add(8)
    clock.pass_s(TICK_S)
    balance.compare()
    assert balance.surplus == 0
