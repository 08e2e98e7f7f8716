"""A failure is logged once, and attempts spread out."""

from __future__ import annotations

import pytest

from offpath.handler.prediction_log.delivery_failures import pause_s


@pytest.mark.parametrize(
    ("failures", "step_s"), [(1, 0.5), (2, 1.0), (4, 4.0), (7, 30.0), (10_000, 30.0)]
)
def test_pauses_double_up_to_their_cap_and_jitter(failures: int, step_s: float) -> None:
    assert pause_s(failures, 30.0, draw=lambda: 0.0) == step_s / 2
    assert pause_s(failures, 30.0, draw=lambda: 1.0) == step_s
