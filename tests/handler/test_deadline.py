"""Judges requests as late or not, by a clock that stands at NOW_S."""

from __future__ import annotations

import pytest

from offpath.handler.contract import Request
from offpath.handler.deadline import Deadlines
from tests.guarantees import guarantee

NOW_S = 1_800_000_000.0
HALF_A_SECOND_AGO = {"x-offpath-arrived": "1799999999.500"}


def is_late(deadlines: Deadlines, headers: dict) -> bool:
    return deadlines.refuse_late([Request(b"image", headers=headers)]).keys() == {0}


def make(max_ms: int = 0) -> Deadlines:
    return Deadlines(max_ms, clock=lambda: NOW_S)


@pytest.mark.parametrize(
    ("max_ms", "asked", "late"),
    [
        pytest.param(0, {}, False, id="none"),
        pytest.param(0, {"x-request-timeout-ms": "400"}, True, id="over"),
        pytest.param(0, {"x-envoy-expected-rq-timeout-ms": "400"}, True, id="envoys"),
        pytest.param(400, {}, True, id="archives"),
        pytest.param(600, {}, False, id="archives-left"),
        pytest.param(400, {"x-request-timeout-ms": "9000"}, True, id="no-extension"),
        pytest.param(600, {"x-request-timeout-ms": "400"}, True, id="shorter"),
        pytest.param(0, {"x-request-timeout-ms": "\u0664\u0660\u0660"}, False, id="arabic"),
    ],
)
def test_a_header_shortens_the_archives_time_and_cannot_extend_it(
    max_ms: int, asked: dict, late: bool
) -> None:
    assert is_late(make(max_ms), {**HALF_A_SECOND_AGO, **asked}) == late


@pytest.mark.parametrize(
    ("start", "late"),
    [
        pytest.param("t=1799999999.5", True, id="nginx"),
        pytest.param("1799999999500", True, id="milliseconds"),
        pytest.param("t=1900000000.0", False, id="in-the-future"),
        pytest.param("t=1", False, id="short"),
    ],
)
def test_the_time_begins_when_a_proxy_says(start: str, late: bool) -> None:
    headers = {"x-request-start": start, "x-request-timeout-ms": "400"}
    assert is_late(make(), headers) == late
    # The door's own header cannot be overruled by another one, in whatever order they come.
    assert is_late(make(), {**headers, **HALF_A_SECOND_AGO})
    assert is_late(make(), {**HALF_A_SECOND_AGO, **headers})


def test_what_recent_batches_took_has_to_fit_in_and_is_forgotten() -> None:
    deadlines = make(600)
    assert not is_late(deadlines, HALF_A_SECOND_AGO)
    deadlines.learn(0.2)
    assert is_late(deadlines, HALF_A_SECOND_AGO)
    # A request that has just come is always tried, so that a slow batch is forgotten.
    deadlines.learn(60)
    assert not is_late(deadlines, {"x-request-start": f"t={NOW_S - 0.05}"})
    for _ in range(300):
        deadlines.learn(0.05)
    assert not is_late(deadlines, HALF_A_SECOND_AGO)


def test_one_costly_batch_refuses_nobody_and_several_do() -> None:
    deadlines = Deadlines(1000, lambda: NOW_S)
    deadlines.learn(0.02)
    deadlines.learn(1.5)
    assert not is_late(deadlines, HALF_A_SECOND_AGO)
    for _ in range(5):
        deadlines.learn(1.5)
    assert is_late(deadlines, HALF_A_SECOND_AGO)


@guarantee(
    "The clock jumps",
    "handler/deadline.py",
    "*(read_start(headers[name]) for",
    "*(now_s - abs(now_s - read_start(headers[name])) for",
)
@pytest.mark.parametrize(
    ("jump_s", "waiting_is_late"),
    [pytest.param(3 * 3600, True, id="forward"), pytest.param(-3 * 3600, False, id="back")],
)
def test_a_jump_of_the_clock_costs_at_most_the_requests_that_wait(
    jump_s: int, waiting_is_late: bool
) -> None:
    """The clock of the door that notes the arrival and of the worker that judges is the same."""
    deadlines = Deadlines(1000, clock=lambda: NOW_S + jump_s)
    assert is_late(deadlines, HALF_A_SECOND_AGO) == waiting_is_late
    arrived_s = NOW_S + jump_s - 0.5
    assert not is_late(deadlines, {"x-offpath-arrived": f"{arrived_s:.3f}"})
