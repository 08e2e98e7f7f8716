from __future__ import annotations

import pytest

from offpath.handler.stages import BatchTimings, Stage, StageTimer, format_server_timing
from offpath.serving.client import parse_server_timing
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


def test_stage_that_raises_is_counted(clock: Clock) -> None:
    timer = StageTimer(clock)
    with pytest.raises(RuntimeError), timer.stage(Stage.INFERENCE):
        clock.pass_s(3.0)
        raise RuntimeError
    assert timer.seconds[Stage.INFERENCE] == 3.0


def test_shared_wall_time_is_split_in_proportion(clock: Clock) -> None:
    timer = StageTimer(clock)
    shares = {Stage.DECODE: 0.0, Stage.TRANSFORM: 0.0}
    with timer.shared(shares):
        clock.pass_s(2.0)  # four threads worked 8 s in 2 s
        shares[Stage.DECODE], shares[Stage.TRANSFORM] = 6.0, 2.0
    assert timer.seconds[Stage.DECODE] == 1.5
    assert timer.seconds[Stage.TRANSFORM] == 0.5
    assert timer.read().other_s == 0.0


def test_shared_time_of_nothing_stays_other(clock: Clock) -> None:
    timer = StageTimer(clock)
    with timer.shared({Stage.DECODE: 0.0, Stage.TRANSFORM: 0.0}):
        clock.pass_s(1.0)
    with timer.shared({}):
        clock.pass_s(1.0)
    assert sum(timer.seconds.values()) == 0.0
    assert timer.read().other_s == 2.0


def test_server_timing_header_is_read_back_by_the_client() -> None:
    seconds = {stage: 0.001 * (index + 1) for index, stage in enumerate(Stage)}
    header = format_server_timing(BatchTimings(seconds, 0.12345))
    names = "read decode transform transfer inference postprocess log".split()
    expected = dict(zip(names, range(1, 8), strict=True))
    assert parse_server_timing(header) == pytest.approx({**expected, "total": 123.45})


def test_server_timing_header_is_what_the_standard_says() -> None:
    timings = BatchTimings({Stage.DECODE: 0.0112, Stage.LOG: 0.0}, 0.02)
    header = format_server_timing(timings)
    assert header == "decode;dur=11.20, log;dur=0.00, total;dur=20.00"
    assert header.isascii()
