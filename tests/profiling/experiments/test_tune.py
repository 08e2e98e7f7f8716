"""The grid of `offpath tune`, and its verdict."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from offpath.archive.model_config import load_preset
from offpath.profiling.core.run import Run
from offpath.profiling.experiments.grid_search import Setting, TuneChoices, make_grid, read_result
from tests.profiling import runs

OWN, OTHER, SLOW = Setting(8, 2, 2), Setting(16, 5, 2), Setting(32, 20, 3)


def choose(**values) -> TuneChoices:
    defaults = {
        **{"mar": Path("a.mar"), "p95_ms": 100, "server": "granian", "workload": "photos-55k"},
        **{"clients": 32, "rounds": 3, "command": "", "workers": [1, 2]},
        **{"batch_sizes": (), "delays_ms": ()},
    }
    return TuneChoices(**{**defaults, **values})


def make_run(own=(100, 102, 101), other=(120, 118, 123), own_ms=50.0, p95_ms=100.0) -> Run:
    """Three rounds of ten seconds in which every answer of a setting took equally long."""
    settings = {str(one): asdict(one) for one in (OWN, OTHER, SLOW)}
    details = {"config": load_preset("cpu"), "p95_ms": p95_ms}
    run = runs.make_run("tune", variants=settings, details=details)
    for setting, rates, ms in ((OWN, own, own_ms), (OTHER, other, 60.0), (SLOW, [200] * 3, 400.0)):
        for round_, rate in enumerate(rates):
            figures = {"elapsed_s": 10.0, "replies_200": 10 * rate, "latency_ms": [ms] * 20}
            run.add(round_, str(setting), runs.PHOTOS, figures)
    return run


def test_the_grid_begins_with_the_archives_setting_and_has_no_batch_above_the_clients():
    grid = make_grid(choose(clients=8, delays_ms=[1, 2]), OWN)
    assert grid[0] == OWN and len(set(grid)) == len(grid)
    assert {one.batch_size for one in grid} == {4, 8}
    assert {one.max_batch_delay_ms for one in grid} == {1, 2}


@pytest.mark.parametrize(
    ("measured", "winner", "text"),
    [
        pytest.param({}, OTHER, "1.20 times", id="faster-in-every-round"),
        pytest.param({"other": (120, 118, 103)}, OWN, "own setting stays", id="equal-in-one-round"),
        pytest.param({"own": [100], "other": [150]}, OWN, "at least 2 rounds", id="one-round"),
        pytest.param({"own_ms": 300.0}, OTHER, "not within 100 ms", id="own-beyond-the-bound"),
        pytest.param({"p95_ms": 20.0}, None, "p95 50 ms", id="nothing-within-the-bound"),
        pytest.param({"p95_ms": 500.0}, SLOW, "times the rate", id="all-within-the-bound"),
    ],
)
def test_only_a_clear_gain_within_the_bound_replaces_the_archives_setting(measured, winner, text):
    verdict = read_result(make_run(**measured)).verdict
    assert verdict.winner == winner
    assert text in verdict.text
