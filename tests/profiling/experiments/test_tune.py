"""The space and the order of a search; servers and load that take no time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offpath.archive.model_config import load_preset
from offpath.errors import ExpectedError
from offpath.profiling.experiments import tune
from offpath.profiling.experiments.tune import Proposals, Search, TuneChoices, make_space
from offpath.profiling.experiments.tune_report import (
    Outcome,
    read_fresh_rounds,
    read_trials,
    select_rounds,
)
from offpath.profiling.load.window import LoadSample, Watcher, WindowLoad
from offpath.profiling.load.workload import describe
from offpath.profiling.servers.registering import Setting, read_setting
from tests.profiling.experiments.tuned import LARGE, PRESET, REPEATS, make_empty, make_run
from tests.profiling.quick_server import Listener


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

    def serve(self, setting):
        self.served.append(setting)
        self.is_dead = self.dies and setting.workers == 1
        if self.error and setting.workers == 1:
            raise self.error
        return QuickRunning(self), 0.1

    def is_running(self) -> bool:
        return not self.is_dead


class QuickGenerator:
    """A hundred replies per second, 10 ms each."""

    def run(self, load: WindowLoad, watcher: Watcher) -> LoadSample:
        watcher.on_window()
        return LoadSample(1.0, {"200": 100}, [10.0] * 100, 0.1)


CHOICES = TuneChoices(
    p95_ms=1000.0,
    workload="photos",
    model="near-free",
    mar=None,
    preset=None,
    clients=32,
    trials=3,
    command="offpath tune",
)
SPACE = {"batch_size": (4, 8), "max_batch_delay_ms": (2,), "workers": (1, 2), "threads": (1,)}


@pytest.fixture
def make_search(tmp_path, monkeypatch):
    """`make_search(run, server, **choices)`."""
    monkeypatch.setattr(tune, "find_generator", lambda name: QuickGenerator())
    path = tmp_path / "a.jpg"
    path.write_bytes(b"image")
    workload = describe("photos", [path], ["00"])

    def make(run, server, **changes) -> Search:
        choices = replace(CHOICES, **changes)
        return Search(choices, workload, server, run, PRESET, Listener(), lambda run: None)

    return make


def try_settings(search: Search, space=SPACE) -> None:
    search.try_settings(Proposals(space, PRESET, search.choices.p95_ms))


def test_the_preset_is_first_and_a_trials_windows_share_its_workers(make_search):
    run, server = make_empty(), QuickServer()
    search = make_search(run, server)
    try_settings(search)
    outcomes = read_trials(run)
    assert list(outcomes) == server.served and server.served[0] == PRESET
    assert len(outcomes) == 3
    windows = [r for r in run.rows if r.metric == "elapsed_s"]
    assert [row.round for row in windows] == [0, 1] * 3
    assert search.observer.steps[0] == f"1/3: {PRESET}"


def test_a_setting_that_does_not_start_is_a_trial_with_its_reason(make_search):
    run = make_empty()
    search = make_search(run, QuickServer(ExpectedError("no memory")))
    try_settings(search)
    reasons = {one.setting.workers: one.error for one in read_trials(run).values()}
    assert reasons == {2: None, 1: "no memory"}
    assert "no memory" in dict(search.observer.failures).values()


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(QuickServer(ExpectedError("gone"), dies=True), id="at-a-start"),
        pytest.param(QuickServer(dies=True), id="under-load"),
    ],
)
def test_a_server_that_dies_ends_the_search_and_finished_trials_stay(make_search, server):
    run = make_empty()
    with pytest.raises(ExpectedError, match="gone|died under load"):
        try_settings(make_search(run, server))
    assert run.failures == [] and PRESET in read_trials(run)


def test_finalists_are_measured_afresh_in_turn(make_search):
    run, server = select_rounds(make_run(), range(REPEATS)), QuickServer()
    make_search(run, server).measure_finalists()
    assert server.served == [PRESET, LARGE] * tune.ROUNDS
    assert [set(one) for one in read_fresh_rounds(run)] == [{PRESET, LARGE}] * tune.ROUNDS


# The space and what comes next


def test_the_default_space_follows_cores_and_clients():
    preset = Setting(8, 1, 2, 1)
    space = make_space(cores=2, clients=8, chosen={}, preset=preset)
    assert space["batch_size"] == (1, 2, 4, 8)
    assert space["workers"] == (1, 2, 3)
    assert space["threads"] == (1, 2)
    assert make_space(16, 64, {}, preset)["threads"] == (1, 2, 4, 8, 16)
    assert make_space(12, 64, {}, preset)["threads"] == (1, 2, 4, 8)
    assert make_space(2, 32, {"workers": (4, 2, 4)}, preset)["workers"] == (2, 4)


def test_a_preset_is_a_setting_with_its_threads_counted():
    assert read_setting(load_preset("cpu"), cores=2) == Setting(8, 1, 2, 1)
    assert read_setting(load_preset("cpu"), cores=8).threads == 4
    own = {**load_preset("cpu"), "handler": {"threads": 3}}
    assert read_setting(own, cores=8).threads == 3
    assert read_setting(own, cores=8, has_our_handler=False).threads == 0


def choose(count: int, threads: tuple[int, ...] = (1, 2)) -> list[Setting]:
    """Searches a made-up server on which larger batches are faster, up to 8."""
    space = {
        "batch_size": (1, 2, 4, 8, 16),
        "max_batch_delay_ms": (2, 5),
        "workers": (1, 2),
        "threads": threads,
    }
    proposals, done = Proposals(space, PRESET, 100.0), []
    while len(done) < count and (setting := proposals.ask()) is not None:
        rate = min(setting.batch_size, 8) * 10.0 - setting.max_batch_delay_ms
        proposals.tell(Outcome(setting, rate, rate, rate, 50, 50, 0, 100))
        done.append(setting)
    return done


def test_the_preset_is_proposed_first_then_every_setting_of_the_space_once():
    done = choose(100, threads=(1,))
    assert done[0] == PRESET
    assert len(done) == len(set(done)) == 20


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"p50_ms": 101, "p95_ms": 101}, id="beyond-the-bound"),
        pytest.param({"p50_ms": 9, "p95_ms": 9, "failures": 1}, id="failed-requests"),
        pytest.param({"error": "no memory"}, id="no-start"),
        pytest.param({"failures": 5}, id="no-answer"),
    ],
)
def test_the_best_setting_is_within_the_bound_and_failed_nothing(other):
    proposals = Proposals(SPACE, PRESET, 100.0)
    preset, faster = proposals.ask(), proposals.ask()
    proposals.tell(Outcome(preset, 10, 10, 10, 50, 100, 0, 100))
    proposals.tell(Outcome(faster, 900, replies=100, **other))
    assert proposals.study.best_value == 10
    assert proposals.ask() not in (None, preset, faster)
