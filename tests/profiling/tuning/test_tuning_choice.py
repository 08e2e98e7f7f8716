"""Scores, finalists and the verdict, from made-up measurements."""

from __future__ import annotations

import math

import pytest

from offpath.profiling.experiments.tuning.choice import (
    choose_finalists,
    explain_nothing_within,
    find_bound,
    is_hopeless,
    judge,
    rank,
    round_ratios,
    score,
    summarise,
    summarise_trials,
)
from offpath.profiling.experiments.tuning.result import FinalRound, Trial
from offpath.profiling.experiments.tuning.space import Candidate
from tests.profiling.tunings import (
    OTHER,
    PRESET,
    make_finals,
    make_trial,
    make_tuning,
    make_window,
)

SMALL = Candidate(1, 1, 1, 1)


def summary(rate: float, ms: float, failures: int = 0):
    return summarise(SMALL, [make_window(rate, ms, failures)])


def test_a_summary_takes_the_median_rate_and_the_percentile_of_all_windows():
    windows = [make_window(100, 10), make_window(300, 10), make_window(110, 50)]
    found = summarise(SMALL, windows)
    assert (found.rate, found.rate_low, found.rate_high) == (110, 100, 300)
    assert (found.p50_ms, found.p95_ms) == (10, 50)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        pytest.param(summary(200, 90), summary(100, 10), id="faster-within-the-bound"),
        pytest.param(summary(10, 99), summary(900, 101), id="within-beats-beyond"),
        pytest.param(summary(10, 110), summary(900, 300), id="nearer-beats-farther"),
        pytest.param(summary(10, 900), summary(900, 10, 1), id="slow-beats-failing"),
        pytest.param(
            summary(10, 900, 9),
            summarise(SMALL, [], "no start"),
            id="failing-beats-none",
        ),
    ],
)
def test_the_score_orders_by_rate_within_the_bound_then_by_nearness(better, worse):
    assert score(better, 100) > score(worse, 100)


def test_a_candidate_at_the_bound_is_within_it():
    assert summary(1, 100).is_within(100)
    assert not summary(1, 100.1).is_within(100)
    assert not summary(1, 1, failures=1).is_within(100)


def test_the_preset_and_the_best_other_candidate_within_the_bound_are_finalists():
    summaries = summarise_trials(make_tuning().trials)
    assert choose_finalists(summaries, PRESET, 100) == [PRESET, OTHER]
    assert choose_finalists(summaries, PRESET, 85) == [PRESET, SMALL]
    assert choose_finalists(summaries, PRESET, 1000)[1] == Candidate(32, 20, 3, 2)


def test_the_preset_is_a_finalist_even_when_it_does_not_hold_the_bound():
    summaries = summarise_trials(make_tuning().trials)
    assert choose_finalists(summaries, PRESET, 30) == [PRESET, SMALL]


def test_nothing_within_the_bound_has_no_finalist_and_names_the_best_p95():
    summaries = summarise_trials(make_tuning().trials)
    assert choose_finalists(summaries, PRESET, 10) == []
    text = explain_nothing_within(summaries, 10, clients=32)
    assert "none of 4 candidates" in text and "best p95 is 20 ms (batch 1" in text
    assert "need about 3200 req/s, the fastest candidate gave 200" in text
    # 200 req/s within 10 ms are two clients' mean, and one client's p95.
    assert text.endswith(
        "try --p95-ms 25, which judges the same measurements anew, or --clients 1"
    )


def test_clients_are_advised_only_where_some_would_do():
    summaries = summarise_trials(make_tuning().trials)
    assert "--clients" not in explain_nothing_within(summaries, 4, clients=32)


@pytest.mark.parametrize(
    ("asked_ms", "trials", "bound_ms"),
    [
        pytest.param(70, make_tuning().trials, 70, id="asked"),
        pytest.param(None, make_tuning().trials, 100, id="above-the-presets"),
        pytest.param(None, [make_trial(PRESET, 9, 231)], 290, id="rounded-up"),
        pytest.param(None, [], math.inf, id="preset-not-measured-yet"),
        pytest.param(None, [Trial(PRESET, [], 0.0, "no")], 100, id="preset-fails"),
    ],
)
def test_the_bound_is_the_users_or_a_quarter_above_the_presets(
    asked_ms, trials, bound_ms
):
    assert find_bound(asked_ms, trials, PRESET) == bound_ms


def test_a_search_is_hopeless_when_several_are_all_far_beyond_the_bound():
    far = [summary(10, 201)] * 6
    assert is_hopeless(far, 100)
    assert not is_hopeless(far[:5], 100)
    assert not is_hopeless([*far, summary(10, 199)], 100)
    assert not is_hopeless([summarise(SMALL, [], "no start")] * 9, 100)


def test_candidates_that_all_fail_to_start_say_why():
    trials = [Trial(SMALL, [], 0.0, "no memory")]
    assert "no memory" in explain_nothing_within(summarise_trials(trials), 10, 32)


def test_the_best_comes_first_and_what_did_not_start_last():
    trials = [Trial(SMALL, [], 0.0, "no"), make_trial(PRESET, 10, 900)]
    ranked = rank(summarise_trials([*trials, make_trial(OTHER, 1, 1)]), 100)
    assert [s.candidate for s in ranked] == [OTHER, PRESET, SMALL]


def test_a_candidate_that_wins_every_round_beats_the_preset_with_its_spread():
    verdict = judge(make_finals([100, 100, 100], [110, 112, 130]), PRESET, 100)
    assert verdict.winner == OTHER and verdict.is_better
    assert "beats the preset by +12.0 %" in verdict.text
    assert "rounds: +10.0 % to +30.0 %; it won 3 of 3" in verdict.text


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
    verdict = judge(make_finals(preset, other), PRESET, 100)
    assert verdict.winner == PRESET and not verdict.is_better
    assert "confirms the preset" in verdict.text


def test_the_noise_between_rounds_does_not_hide_a_gain_inside_them():
    finals = make_finals([100, 50, 200], [110, 55, 220])
    assert round_ratios(finals, PRESET, OTHER) == pytest.approx([1.1, 1.1, 1.1])
    assert judge(finals, PRESET, 100).winner == OTHER


def finals_at(preset_ms: float, other_ms: float) -> list[FinalRound]:
    return [
        FinalRound(0, PRESET, make_window(100, preset_ms)),
        FinalRound(0, OTHER, make_window(200, other_ms)),
    ]


def test_a_winner_of_the_search_that_breaks_the_bound_in_fresh_rounds_loses():
    verdict = judge(finals_at(90, 110), PRESET, 100)
    assert verdict.winner == PRESET and "did not hold the bound" in verdict.text


def test_a_preset_beyond_the_bound_is_beaten_by_whoever_holds_it():
    verdict = judge(finals_at(110, 90), PRESET, 100)
    assert verdict.winner == OTHER and "does not hold p95 100 ms" in verdict.text
    assert "p95 110 ms, within in 0 of 1 rounds" in verdict.text
    assert "p95 90 ms, within in 1 of 1 rounds" in verdict.text


def test_fresh_rounds_that_all_break_the_bound_have_no_winner():
    verdict = judge(finals_at(110, 120), PRESET, 100)
    assert verdict.winner is None and "nothing held p95 100 ms" in verdict.text


def test_a_preset_alone_within_the_bound_is_confirmed():
    finals = [FinalRound(0, PRESET, make_window(100, 50))]
    assert judge(finals, PRESET, 100).winner == PRESET
