from __future__ import annotations

import math
from pathlib import Path

import pytest

from offpath.handler.contract import Request
from offpath.handler.wire_names import BODY_HEADER
from offpath.serving.service.costs import REMEMBERED_S, Costs, find_size
from tests.support.clock import Clock

MAX_WAIT_S = 60.0


def test_costs_are_learned_per_byte_and_per_request() -> None:
    costs, small, large = Costs(MAX_WAIT_S), Request(b"1" * 10), Request(b"1" * 100)
    assert costs.predict_read_s(large) == costs.predict_wait_s(100) == 0.0
    for _ in range(50):
        costs.learn([small, small], 0.5, 0.45)
    assert costs.predict_read_s(large) == pytest.approx(2.25)
    assert costs.predict_wait_s(4) == pytest.approx(1.0)
    costs.learn([large], 10.0, 9.5)
    assert 2.25 < costs.predict_read_s(large) < 3.0


def test_one_slow_batch_is_soon_forgotten() -> None:
    costs, request = Costs(MAX_WAIT_S), Request(b"1")
    costs.learn([request], 10.0, 1.0)
    for _ in range(16):
        costs.learn([request], 0.1, 0.1)
    assert costs.predict_wait_s(1) < 0.3
    costs.learn([request], 10.0, 1.0)
    assert costs.predict_wait_s(1) < 0.3


def test_reading_closes_no_batches_of_a_slow_model() -> None:
    costs, request = Costs(MAX_WAIT_S), Request(b"1")
    for _ in range(50):
        costs.learn([request], 1.0, 0.5)
    assert costs.predict_read_s(request) == 0.0


def test_a_body_of_the_front_door_is_as_large_as_its_file(tmp_path: Path) -> None:
    file = tmp_path / "1"
    file.write_bytes(b"12345")
    assert find_size(Request(b"", headers={BODY_HEADER: str(file)})) == 5
    file.unlink()
    assert find_size(Request(b"", headers={BODY_HEADER: str(file)})) == 0


@pytest.mark.parametrize(
    ("ages_s", "pause_s", "max_wait_s"),
    [
        pytest.param([1.0, 0.98, 1.01] * 20, 0.1, 0.5, id="after-the-same-time"),
        pytest.param([1.0] * 60, 0.0, MAX_WAIT_S, id="all-at-once"),
        pytest.param([0.3, 0.6, 1.0] * 20, 0.1, MAX_WAIT_S, id="after-different-times"),
        pytest.param([1.0] * 10, 0.1, MAX_WAIT_S, id="few"),
    ],
)
def test_waiting_is_short_while_clients_leave(
    ages_s: list[float], pause_s: float, max_wait_s: float
) -> None:
    clock = Clock()
    costs = Costs(MAX_WAIT_S, clock=clock)
    for age_s in ages_s:
        clock.pass_s(pause_s)
        costs.note_left(age_s)
    assert costs.max_wait_s == pytest.approx(max_wait_s, rel=0.1)
    is_impatient = max_wait_s < MAX_WAIT_S
    assert costs.max_age_s == pytest.approx(0.8 if is_impatient else math.inf, rel=0.1)
    clock.pass_s(REMEMBERED_S)
    assert costs.max_wait_s == MAX_WAIT_S
