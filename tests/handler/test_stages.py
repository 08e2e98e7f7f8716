from __future__ import annotations

import pytest

from offpath.handler.stages import Stage, StageTimer
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_stages_add_up_and_the_rest_is_other(clock: Clock) -> None:
    timer = StageTimer(clock)
    with timer.stage(Stage.READ):
        clock.pass_s(1.0)
    clock.pass_s(0.25)
    with timer.stage(Stage.DECODE):
        clock.pass_s(2.0)
    with timer.stage(Stage.READ):
        clock.pass_s(0.5)
    timings = timer.read()
    assert timings.seconds[Stage.READ] == 1.5
    assert timings.seconds[Stage.DECODE] == 2.0
    assert timings.seconds[Stage.LOG] == 0.0
    assert timings.total_s == 3.75
    assert timings.other_s == 0.25


def test_shared_wall_time_is_split_in_proportion(clock: Clock) -> None:
    timer = StageTimer(clock)
    shares = {Stage.DECODE: 0.0, Stage.TRANSFORM: 0.0}
    with timer.shared(shares):
        clock.pass_s(2.0)  # four threads worked 8 s in 2 s
        shares[Stage.DECODE], shares[Stage.TRANSFORM] = 6.0, 2.0
    assert timer.seconds[Stage.DECODE] == 1.5
    assert timer.seconds[Stage.TRANSFORM] == 0.5
    assert timer.read().other_s == 0.0
