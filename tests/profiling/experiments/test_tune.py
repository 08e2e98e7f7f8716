"""The space and the order of a search; servers and load that take no time."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from offpath.archive.model_config import load_preset
from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.tune import (
    Search,
    SearchSpace,
    TuneChoices,
    Tuning,
    estimate_s,
    make_space,
    propose_setting,
)
from offpath.profiling.experiments.tune_report import (
    read_finals,
    read_trials,
    select_rounds,
)
from offpath.profiling.load.plan import Load, LoadPlan, LoadSample, Watcher
from offpath.profiling.load.workload import describe
from offpath.profiling.servers.registering import ServerDied, Setting, read_setting
from tests.profiling.experiments.tuned import (
    LARGE,
    PRESET,
    REPEATS,
    make_empty,
    make_run,
)
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

    @contextmanager
    def serving(self, setting):
        self.served.append(setting)
        if self.error and setting.workers == 1:
            raise self.error
        self.is_dead = self.dies and setting.workers == 1
        yield QuickRunning(self), 0.1


class QuickGenerator:
    """A hundred replies per second, 10 ms each."""

    def run(self, plan: LoadPlan, watcher: Watcher) -> LoadSample:
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
    repeats=REPEATS,
    rounds=2,
    load=Load(seconds=0.5, warm_up_s=0.0),
    settle_s=0.0,
    command="offpath tune",
)
SPACE = SearchSpace((4, 8), (2,), (1, 2), (1,))


@pytest.fixture
def make_search(tmp_path, monkeypatch):
    """`make_search(run, server, **choices)`."""
    monkeypatch.setattr(
        "offpath.profiling.experiments.tune.find_generator",
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
    choices = replace(CHOICES, load=Load(seconds=4.0, warm_up_s=3.0))
    whole_s = estimate_s(choices, SPACE, [], 0)
    assert whole_s == 3 * (8 + 3 + 8 + 3) + 4 * (8 + 3 + 8 + 1)
    assert estimate_s(choices, SPACE, [5.0], 1) == 2 * (5 + 14) + 4 * (5 + 12)


def test_a_setting_that_does_not_start_is_a_trial_with_its_reason(make_search):
    run = make_empty()
    search = make_search(run, QuickServer(ExpectedError("no memory")))
    search.try_settings()
    reasons = {one.setting.workers: one.error for one in read_trials(run).values()}
    assert reasons == {2: None, 1: "no memory"}
    assert "no memory" in dict(search.observer.failures).values()


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(QuickServer(ServerDied("gone")), id="at-a-start"),
        pytest.param(QuickServer(dies=True), id="under-load"),
    ],
)
def test_a_server_that_dies_ends_the_search_and_finished_trials_stay(make_search, server):
    run = make_empty()
    with pytest.raises(ServerDied):
        make_search(run, server).try_settings()
    assert run.failures == [] and PRESET in read_trials(run)


def test_finalists_are_measured_afresh_in_turn(make_search):
    run, server = select_rounds(make_run(), range(REPEATS)), QuickServer()
    make_search(run, server).measure_finalists()
    assert server.served == [PRESET, LARGE, PRESET, LARGE]
    assert [len(final.rounds) for final in read_finals(run)] == [2, 2]


# The space and what comes next


def test_the_default_space_follows_cores_and_clients():
    space = make_space(cores=2, clients=8, chosen={})
    assert space.batch_size == (1, 2, 4, 8)
    assert space.workers == (1, 2, 3)
    assert space.threads == (1, 2)
    assert make_space(16, 64, {}).threads == (1, 2, 4, 8, 16)
    assert make_space(12, 64, {}).threads == (1, 2, 4, 8)
    assert make_space(2, 32, {"workers": (4, 2, 4)}).workers == (2, 4)


def test_another_handler_sets_its_threads_itself():
    assert make_space(2, 32, {}, has_our_handler=False).threads == (0,)
    with pytest.raises(ExpectedError, match="threads cannot be searched"):
        make_space(2, 32, {"threads": (1,)}, has_our_handler=False)


@pytest.mark.parametrize("choices", [(), (0,), (10**6,)])
def test_choices_that_torchserve_would_ignore_are_refused(choices):
    with pytest.raises(ExpectedError, match="values of batch_size"):
        SearchSpace(choices, (1,), (1,), (1,))


def test_a_preset_is_a_setting_with_its_threads_counted():
    assert read_setting(load_preset("cpu"), cores=2) == Setting(8, 1, 2, 1)
    assert read_setting(load_preset("cpu"), cores=8).threads == 4
    own = {**load_preset("cpu"), "handler": {"threads": 3}}
    assert read_setting(own, cores=8).threads == 3
    assert read_setting(own, cores=8, has_our_handler=False).threads == 0


def choose(
    count: int, start: tuple[Setting, ...] = (), threads: tuple[int, ...] = (1, 2)
) -> list[Setting]:
    """Searches a made-up server on which larger batches are better, up to 8."""
    space = SearchSpace((1, 2, 4, 8, 16), (1, 5), (1, 2), threads)
    done = list(start)
    while len(done) < count:
        scores = {s: min(s.batch_size, 8) - s.max_batch_delay_ms / 10 for s in done}
        setting = propose_setting(space, scores, seed=1)
        if setting is None:
            break
        done.append(setting)
    return done


def test_no_setting_comes_twice_and_the_space_ends():
    done = choose(100, threads=(1,))
    assert len(done) == len(set(done)) == 20


def test_good_settings_are_found_sooner_than_by_chance():
    # Two fifths of the space are among the best batch sizes.
    assert sum(setting.batch_size >= 8 for setting in choose(20)[10:]) >= 6


def test_a_preset_outside_of_the_space_does_not_disturb_the_search():
    assert len(set(choose(10, start=(Setting(7, 3, 9, 9),)))) == 10
