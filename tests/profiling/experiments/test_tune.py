"""The order of a search, how it goes on; servers and load that take no time."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.run import Run, load_run
from offpath.profiling.experiments.tune import Search, go_on_with
from offpath.profiling.experiments.tune_choice import read_finals, read_trials
from offpath.profiling.experiments.tune_experiment import (
    TuneChoices,
    Tuning,
    estimate_s,
)
from offpath.profiling.experiments.tune_space import SearchSpace
from offpath.profiling.load.plan import LoadPlan, LoadSample, Watcher
from offpath.profiling.load.workload import describe
from offpath.profiling.servers.registering import ServerDied
from tests.profiling.experiments.tuned import (
    LARGE,
    PRESET,
    REPEATS,
    make_empty,
    make_run,
)


class QuickRunning:
    predict_url = "http://127.0.0.1:9/predictions/classifier"

    def __init__(self, server: QuickServer) -> None:
        self.server = server

    def groups(self):
        return {"frontend": [], "workers": []}

    def is_running(self) -> bool:
        return not self.server.is_dead

    def log_path(self) -> Path:
        return Path("the.log")


class QuickServer:
    """Serves each setting; one worker alone raises the error that it is told, or kills it."""

    is_dead = False

    def __init__(self, error: Exception | None = None, dies: bool = False) -> None:
        self.error, self.dies, self.served = error, dies, []

    @contextmanager
    def serving(self, setting):
        self.served.append(setting)
        if self.error and setting.workers == 1:
            raise self.error
        self.is_dead = self.dies and setting.workers == 1
        yield QuickRunning(self), 0.1


class QuickGenerator:
    """A hundred answers a second, 10 ms each."""

    def run(self, plan: LoadPlan, watcher: Watcher) -> LoadSample:
        watcher.on_window()
        return LoadSample(1.0, {"200": 100}, [10.0] * 100, 0.1)


class Listener:
    def __init__(self) -> None:
        self.steps: list[str] = []
        self.failures: dict[str, str] = {}

    def on_step(self, text: str) -> None:
        self.steps.append(text)

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        pass

    def on_progress(self, done: int, total: int) -> None:
        pass

    def on_failure(self, variant: str, reason: str) -> None:
        self.failures[variant] = reason


CHOICES = TuneChoices(
    p95_ms=1000.0,
    workload="photos",
    model="near-free",
    mar=None,
    preset=None,
    clients=32,
    trials=3,
    repeats=REPEATS,
    rounds=2,
    seconds=0.5,
    warm_up_s=0.0,
    settle_s=0.0,
    generator="locust",
    seed=0,
    command="offpath tune",
)
SPACE = SearchSpace((4, 8), (2,), (1, 2), (1,))


@pytest.fixture
def make_search(tmp_path, monkeypatch):
    """`make_search(run, server, **choices)`."""
    monkeypatch.setattr(
        "offpath.profiling.experiments.tune_experiment.find_generator",
        lambda name: QuickGenerator(),
    )
    path = tmp_path / "a.jpg"
    path.write_bytes(b"picture")
    workload = describe("photos", [path], ["00"])

    def make(run, server, space=SPACE, save=lambda run: None, **changes) -> Search:
        tuning = Tuning(replace(CHOICES, **changes), workload, server)
        return Search(tuning, run, space, PRESET, Listener(), save)

    return make


def test_the_preset_is_first_and_a_trials_windows_share_its_workers(make_search):
    run, server = make_empty(), QuickServer()
    search = make_search(run, server)
    search.try_settings()
    outcomes = read_trials(run)
    assert list(outcomes) == server.served and server.served[0] == PRESET
    assert len(outcomes) == 3
    windows = [r for r in run.rows if r.metric == "elapsed_s"]
    assert [row.round for row in windows] == [0, 1] * 3
    assert search.observer.steps[1].startswith(
        "2/3, about 1 minute left, best 100 req/s p95 10 ms: batch"
    )


def test_an_interrupted_search_goes_on_after_its_whole_trials(make_search, tmp_path):
    study = tmp_path / "new" / "study.json"

    def save_and_stop(run: Run) -> None:
        run.save(study)
        if sum(row.metric == "elapsed_s" for row in run.rows) == 3:
            raise KeyboardInterrupt  # in the middle of the second trial

    with pytest.raises(KeyboardInterrupt):
        make_search(make_empty(), QuickServer(), save=save_and_stop).try_settings()
    run, server = make_empty(), QuickServer()
    go_on_with(run, load_run(study, "tune"))
    assert list(read_trials(run)) == [PRESET]
    make_search(run, server).try_settings()
    assert PRESET not in server.served and len(server.served) == 2


def test_a_finished_search_keeps_its_trials_and_measures_fresh_rounds_again():
    run = make_empty()
    go_on_with(run, make_run())
    assert len(read_trials(run)) == 4 and read_finals(run) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"settings": {**make_empty().settings, "model": "resnet50"}},
            "settings.model: 'near-free', 'resnet50'",
            id="model",
        ),
        pytest.param(
            {"workloads": {"mine": {}}}, "workloads.mine: None, {}", id="workload"
        ),
        pytest.param({"host": {"cores": 4}}, "host.cores: 2, 4", id="host"),
    ],
)
def test_the_study_of_another_search_is_refused_naming_the_difference(change, message):
    with pytest.raises(ExpectedError, match=message):
        go_on_with(replace(make_empty(), **change), make_run())


def test_a_study_of_another_revision_of_ours_goes_on():
    run = replace(make_empty(), host={"cpu": "some", "cores": 2, "offpath": "def"})
    go_on_with(run, make_run())
    assert run.rows


def test_a_space_smaller_than_the_number_of_trials_ends_the_search(make_search):
    run = make_empty()
    space = SearchSpace((8,), (2,), (2,), (1,))
    make_search(run, QuickServer(), space, trials=50).try_settings()
    assert list(read_trials(run)) == [PRESET]


def test_a_search_far_beyond_the_bound_ends_early(make_search):
    run, space = make_empty(), SearchSpace((1, 2, 4, 8), (1, 2), (1, 2), (1,))
    search = make_search(run, QuickServer(), space, trials=50, p95_ms=1.0)
    search.try_settings()
    assert len(read_trials(run)) == 6
    assert search.observer.steps[-1].startswith("the search ends early")
    search.measure_finalists()
    assert read_finals(run) == []


def test_the_rest_of_a_search_takes_less_with_each_trial():
    choices = replace(CHOICES, seconds=4.0, warm_up_s=3.0)
    whole_s = estimate_s(choices, SPACE, [], 0)
    assert whole_s == 3 * (8 + 3 + 8 + 3) + 4 * (8 + 3 + 8 + 1)
    assert estimate_s(choices, SPACE, [5.0], 1) == 2 * (5 + 14) + 4 * (5 + 12)


def test_a_setting_that_does_not_start_is_a_trial_with_its_reason(make_search):
    run = make_empty()
    search = make_search(run, QuickServer(ExpectedError("no memory")))
    search.try_settings()
    reasons = {one.setting.workers: one.error for one in read_trials(run).values()}
    assert reasons == {2: None, 1: "no memory"}
    assert "no memory" in search.observer.failures.values()


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(QuickServer(ServerDied("gone")), id="at-a-start"),
        pytest.param(QuickServer(dies=True), id="under-load"),
    ],
)
def test_a_server_that_dies_ends_the_search_and_finished_trials_stay(
    make_search, server
):
    run = make_empty()
    with pytest.raises(ServerDied):
        make_search(run, server).try_settings()
    assert run.failures == [] and PRESET in read_trials(run)


def test_finalists_are_measured_afresh_in_turn(make_search):
    run, server = make_empty(), QuickServer()
    go_on_with(run, make_run())
    make_search(run, server).measure_finalists()
    assert server.served == [PRESET, LARGE, PRESET, LARGE]
    assert [len(final.rounds) for final in read_finals(run)] == [2, 2]
