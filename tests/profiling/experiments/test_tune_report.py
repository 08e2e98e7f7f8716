"""Results of a search: outcomes, bound, verdict, finalists and the winner."""

from __future__ import annotations

import pytest

from offpath.profiling.experiments.tune_report import (
    choose_finalists,
    read_result,
    read_trials,
)
from tests.profiling.experiments.tuned import OTHER, PRESET, SMALL, make_run


@pytest.mark.parametrize(
    ("bound_ms", "finalists"),
    [
        pytest.param(100, [PRESET, OTHER], id="the-best-other-within-the-bound"),
        pytest.param(85, [PRESET, SMALL], id="a-faster-one-is-beyond-it"),
        pytest.param(30, [PRESET, SMALL], id="the-preset-is-not-within"),
        pytest.param(10, [], id="nothing-within"),
    ],
)
def test_finalists_are_the_preset_and_the_best_other(bound_ms, finalists):
    outcomes = read_trials(make_run()).values()
    assert choose_finalists(outcomes, PRESET, bound_ms) == finalists


@pytest.mark.parametrize(
    ("preset", "other"),
    [
        pytest.param([100, 100, 100], [101, 101, 101], id="gain-too-small"),
        pytest.param([100], [150], id="one-round-cannot-tell"),
    ],
)
def test_a_gain_within_the_noise_confirms_the_preset(preset, other):
    result = read_result(make_run(preset, other))
    assert result.verdict.winner == PRESET
    assert "confirms the preset" in result.verdict.text
