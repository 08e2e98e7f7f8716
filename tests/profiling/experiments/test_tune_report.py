"""Results of a search: outcomes, bound, verdict, finalists and the winner."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from offpath.archive.model_config import load_preset
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.experiments.tune_report import (
    choose_finalists,
    read_result,
    read_trials,
)
from offpath.profiling.servers.registering import Setting

PRESET, OTHER = Setting(8, 2, 2, 1), Setting(16, 5, 2, 1)
SMALL, LARGE = Setting(1, 1, 1, 1), Setting(32, 20, 3, 2)
CELL = Cell("photos", 32)
REPEATS = 2


def make_figures(rate: float, ms: float) -> dict:
    """Ten seconds in which every answer took `ms`."""
    return {
        "elapsed_s": 10.0,
        "replies_200": round(10 * rate),
        "latency_ms": [ms] * 20,
        "other_cores": 0.01,
    }


def add_windows(run: Run, setting: Setting, first_round: int, *windows: tuple) -> None:
    run.variants[str(setting)] = asdict(setting)
    for number, window in enumerate(windows, start=first_round):
        run.add(number, str(setting), Cell(), {"ready_s": 5.0})
        run.add(number, str(setting), CELL, make_figures(*window))


def make_run(preset=(100, 102, 101), other=(120, 118, 123)) -> Run:
    """Four trials, then fresh rounds in which both answer in 50 ms."""
    run = Run(
        experiment="tune",
        command="offpath tune --model near-free",
        settings={"model": "near-free", "archive": "ab", "clients": 32, "repeats": 2},
        workloads={"photos": {"identity": "cd", "count": 20, "mean_bytes": 1000}},
        host={"cpu": "some", "cores": 2, "offpath": "abc"},
        started_at="2026-01-01T00:00:00+00:00",
        details={
            "reference": asdict(PRESET),
            "preset": {**load_preset("cpu"), "handler": {"top_k": 3}},
            "p95_ms": 100.0,
        },
    )
    for setting, rate, ms in (
        *((PRESET, 100, 80), (OTHER, 120, 90)),
        *((SMALL, 50, 20), (LARGE, 200, 400)),
    ):
        add_windows(run, setting, 0, *[(rate, ms)] * REPEATS)
    for setting, rates in ((PRESET, preset), (OTHER, other)):
        add_windows(run, setting, REPEATS, *((rate, 50) for rate in rates))
    return run


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
