"""Results of a search: outcomes, bound, verdict, tables, chart and preset."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offpath.archive.model_config import load_preset, make_model_config
from offpath.profiling.experiments.tune_report import (
    Outcome,
    choose_finalists,
    judge,
    rank,
    read_fresh_rounds,
    read_result,
    read_trials,
    write_preset,
)
from tests.profiling.experiments.tuned import (
    LARGE,
    OTHER,
    PRESET,
    REPEATS,
    SMALL,
    add_windows,
    make_empty,
    make_run,
)


def outcome(rate: float, ms: float, failures: int = 0) -> Outcome:
    return Outcome(SMALL, rate, rate, rate, ms, ms, failures, 100)


NO_START = Outcome(SMALL, error="no memory")


def test_an_outcome_is_of_all_windows_of_a_trial_and_of_no_fresh_round():
    run = make_empty()
    add_windows(run, SMALL, 0, (100, 10), (300, 50, 3))
    add_windows(run, SMALL, REPEATS, (900, 1))
    found = read_trials(run)[SMALL]
    assert (found.rate, found.rate_low, found.rate_high) == (200, 100, 300)
    assert (found.p50_ms, found.p95_ms) == (30, 50)
    assert (found.failures, found.replies) == (3, 4003)
    ((setting, fresh),) = read_fresh_rounds(run)[0].items()
    assert (setting, fresh.rate) == (SMALL, 900)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        pytest.param(outcome(200, 90), outcome(100, 10), id="faster-within-the-bound"),
        pytest.param(outcome(10, 99), outcome(900, 101), id="within-beats-beyond"),
        pytest.param(outcome(10, 110), outcome(900, 300), id="nearer-beats-farther"),
        pytest.param(outcome(10, 900), outcome(900, 10, 1), id="slow-beats-failing"),
        pytest.param(outcome(10, 900, 9), NO_START, id="failing-beats-none"),
    ],
)
def test_outcomes_are_ranked_by_rate_within_the_bound_then_by_p95(better, worse):
    assert rank([worse, better], 100) == [better, worse]


@pytest.mark.parametrize(
    ("bound_ms", "finalists"),
    [
        pytest.param(100, [PRESET, OTHER], id="the-best-other-within-the-bound"),
        pytest.param(90, [PRESET, OTHER], id="exactly-at-it"),
        pytest.param(85, [PRESET, SMALL], id="a-faster-one-is-beyond-it"),
        pytest.param(1000, [PRESET, LARGE], id="all-within"),
        pytest.param(30, [PRESET, SMALL], id="the-preset-is-not-within"),
        pytest.param(10, [], id="nothing-within"),
    ],
)
def test_finalists_are_the_preset_and_the_best_other(bound_ms, finalists):
    outcomes = read_trials(make_run()).values()
    assert choose_finalists(outcomes, PRESET, bound_ms) == finalists


# The verdict


def test_one_that_wins_every_round_beats_the_preset_with_its_spread():
    result = read_result(make_run([100, 100, 100], [110, 112, 130]))
    assert result.verdict.winner == OTHER
    assert "beats the preset by +12.0 %" in result.verdict.text
    assert "rounds: +10.0 % to +30.0 %; won 3 of 3" in result.verdict.text


@pytest.mark.parametrize(
    ("preset", "other"),
    [
        pytest.param([100, 100, 100], [130, 130, 99], id="lost-a-round"),
        pytest.param([100, 100, 100], [101, 101, 101], id="gain-too-small"),
        pytest.param([100, 100, 100], [80, 90, 70], id="slower"),
        pytest.param([100], [150], id="one-round-cannot-tell"),
    ],
)
def test_a_gain_within_the_noise_confirms_the_preset(preset, other):
    result = read_result(make_run(preset, other))
    assert result.verdict.winner == PRESET
    assert "confirms the preset" in result.verdict.text


@pytest.mark.parametrize(
    ("preset_ms", "other_ms", "winner", "said"),
    [
        pytest.param(90, 110, PRESET, "nothing else was within the bound", id="it-breaks-it"),
        pytest.param(110, 90, OTHER, "does not keep p95 within 100 ms", id="preset-does"),
        pytest.param(110, 120, None, "none of the finalists in fresh rounds", id="both-do"),
    ],
)
def test_the_bound_counts_in_fresh_rounds_too(preset_ms, other_ms, winner, said):
    latencies = {PRESET: preset_ms, OTHER: other_ms}
    finals = {one: replace(outcome(100, ms), setting=one) for one, ms in latencies.items()}
    verdict = judge([], finals, [finals], PRESET, 100)
    assert verdict.winner == winner and said in verdict.text


# What is shown and written


def test_the_winner_is_a_preset_that_offpath_archive_takes(tmp_path):
    path, run = tmp_path / "tuned.yaml", make_run()
    write_preset(path, read_result(run))
    config = make_model_config(load_preset(str(path)), {}, {}).settings
    assert config["handler"] == {"top_k": 3, "threads": OTHER.threads}
    assert (config["batchSize"], config["maxBatchDelay"]) == (16, 5)
    assert (config["minWorkers"], config["maxWorkers"]) == (2, 2)
    assert config["responseTimeout"] == load_preset("cpu")["responseTimeout"]
    assert path.read_text().startswith("# 2026-01-01")
