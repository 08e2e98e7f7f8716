"""The order of a search, its saves and its resumption; servers and load that take no time."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.tuning.result import TUNING
from offpath.profiling.experiments.tuning.search import (
    Search,
    TuneChoices,
    estimate_s,
    measure_finals,
    search_candidates,
)
from offpath.profiling.experiments.tuning.space import SearchSpace
from offpath.profiling.load.plan import LoadPlan, LoadSample, Watcher
from offpath.profiling.load.workload import describe
from offpath.profiling.servers.registering import ServerDied
from tests.profiling.tunings import PRESET, make_tuning

SPACE = SearchSpace((4, 8), (2,), (1, 2), (1,))


class QuickRunning:
    predict_url = "http://127.0.0.1:9/predictions/classifier"

    def groups(self):
        return {"frontend": [], "workers": []}

    def is_running(self) -> bool:
        return True

    def log_path(self) -> Path:
        return Path("the.log")


class QuickServer:
    """Serves each candidate; one worker alone raises the error that it is told."""

    def __init__(self, error: type[Exception] | None = None) -> None:
        self.error = error
        self.served: list = []

    @contextmanager
    def serving(self, candidate):
        self.served.append(candidate)
        if self.error and candidate.workers == 1:
            raise self.error("no memory")
        yield QuickRunning(), 0.1


class QuickGenerator:
    """A hundred answers a second, 10 ms each."""

    name = "quick"

    def run(self, plan: LoadPlan, watcher: Watcher) -> LoadSample:
        watcher.on_window()
        return LoadSample(1.0, {"200": 100}, [10.0] * 100, 0.1)


class Listener:
    def __init__(self) -> None:
        self.best: list[str] = []

    def on_step(self, text: str) -> None:
        pass

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        pass

    def on_failure(self, server: str, reason: str) -> None:
        pass

    def on_measured(self) -> None:
        pass

    def on_trials(self, done: int, total: int, best: str) -> None:
        self.best.append(best)


def make_choices(**changes) -> TuneChoices:
    values = {
        "p95_ms": 1000.0,
        "workload": "photos",
        "model": "near-free",
        "mar": None,
        "preset": None,
        "clients": 2,
        "trials": 3,
        "repeats": 1,
        "rounds": 2,
        "seconds": 0.5,
        "warm_up_s": 0.0,
        "sampler": "grid",
        "generator": "locust",
        "seed": 0,
        "settle_s": 0.0,
        "command": "offpath tune",
    }
    return TuneChoices(**(values | changes))


@pytest.fixture()
def steps(tmp_path) -> Search:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"picture")
    workload = describe("photos", [path], ["00"])
    return Search(make_choices(), None, workload, QuickGenerator(), Listener())


def test_an_interrupted_search_keeps_its_trials_and_goes_on_after_them(steps, tmp_path):
    study = tmp_path / "study.json"
    result = make_tuning(trials=[], finals=[])

    def save_and_stop(measured) -> None:
        TUNING.save(measured, study)
        if len(measured.trials) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search_candidates(steps, QuickServer(), SPACE, result, save_and_stop)
    earlier = TUNING.load(study)
    first, second = (trial.candidate for trial in earlier.trials)
    assert first == PRESET

    server = QuickServer()
    search_candidates(steps, server, SPACE, earlier, lambda measured: None)
    assert len(server.served) == 1 and server.served[0] not in (first, second)
    assert len(earlier.trials) == 3
    assert steps.observer.best[-1].startswith("best ")


def test_a_space_smaller_than_the_number_of_trials_ends_the_search(steps):
    steps.choices = replace(steps.choices, trials=50)
    result = make_tuning(trials=[], finals=[])
    space = SearchSpace((8,), (2,), (2,), (1,))
    search_candidates(steps, QuickServer(), space, result, lambda measured: None)
    assert [trial.candidate for trial in result.trials] == [PRESET]


def test_a_search_far_beyond_the_bound_ends_early(steps):
    steps.choices = replace(steps.choices, trials=50, p95_ms=1.0)
    result = make_tuning(trials=[], finals=[])
    space = SearchSpace((1, 2, 4, 8), (1, 2), (1, 2), (1,))
    search_candidates(steps, QuickServer(), space, result, lambda measured: None)
    assert len(result.trials) == 6


def test_the_rest_of_a_search_takes_less_with_each_trial():
    choices = make_choices(trials=3, repeats=2, rounds=2, seconds=4.0, warm_up_s=3.0)
    whole_s = estimate_s(choices, SPACE, [])
    assert whole_s == 3 * (8 + 3 + 8 + 3) + 4 * (8 + 3 + 8 + 1)
    trials = make_tuning().trials[:1]
    assert estimate_s(choices, SPACE, trials) == 2 * (5 + 14) + 4 * (5 + 12)


def test_a_candidate_that_does_not_start_is_a_trial_with_its_reason(steps):
    result = make_tuning(trials=[], finals=[])
    search_candidates(steps, QuickServer(ExpectedError), SPACE, result, lambda r: None)
    reasons = {trial.candidate.workers: trial.error for trial in result.trials}
    assert reasons == {2: None, 1: "no memory"}


def test_a_server_that_dies_ends_the_search_and_finished_trials_stay(steps):
    result = make_tuning(trials=[], finals=[])
    with pytest.raises(ServerDied):
        search_candidates(steps, QuickServer(ServerDied), SPACE, result, lambda r: None)
    assert result.trials and all(trial.error is None for trial in result.trials)


def test_finalists_are_measured_afresh_in_turn(steps):
    result, server = make_tuning(finals=[]), QuickServer()
    best = max(
        (t for t in result.trials if t.windows[0].latencies_ms[0] <= 1000),
        key=lambda t: t.windows[0].rate,
    ).candidate
    measure_finals(steps, server, result, lambda measured: None)
    assert server.served == [PRESET, best, PRESET, best]
    assert [final.round for final in result.finals] == [0, 0, 1, 1]


def test_nothing_within_the_bound_has_no_fresh_rounds(steps):
    steps.choices = replace(steps.choices, p95_ms=1.0)
    result = make_tuning()
    measure_finals(steps, QuickServer(), result, lambda measured: None)
    assert result.finals == []
