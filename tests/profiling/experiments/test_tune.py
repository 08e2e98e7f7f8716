"""A search: what is tried, in which order, how it goes on, and what it concludes."""

from __future__ import annotations

import io
import math
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from offpath.archive.model_config import load_preset, make_model_config
from offpath.handler.errors import ExpectedError
from offpath.profiling.core.run import Cell, Failure, Run, load_run
from offpath.profiling.experiments.tune import Search, go_on_with
from offpath.profiling.experiments.tune_choice import (
    Finalist,
    Outcome,
    choose_finalists,
    explain_nothing_within,
    find_bound,
    is_hopeless,
    judge,
    rank,
    read_finals,
    read_trials,
)
from offpath.profiling.experiments.tune_experiment import (
    TuneChoices,
    Tuning,
    estimate_s,
)
from offpath.profiling.experiments.tune_report import (
    check_writable,
    document_of,
    format_outcome,
    verdict_of,
    write_preset,
)
from offpath.profiling.experiments.tune_space import (
    SearchSpace,
    make_space,
    next_setting,
)
from offpath.profiling.load.plan import LoadPlan, LoadSample, Watcher
from offpath.profiling.load.workload import describe
from offpath.profiling.report.terminal import print_document
from offpath.profiling.servers.registering import ServerDied, Setting, read_setting

PRESET, OTHER = Setting(8, 2, 2, 1), Setting(16, 5, 2, 1)
SMALL, LARGE = Setting(1, 1, 1, 1), Setting(32, 20, 3, 2)
CELL = Cell("photos", 32)
REPEATS = 2


def make_figures(rate: float, ms: float, failures: int = 0) -> dict:
    """Ten seconds in which every answer took `ms`."""
    return {
        "elapsed_s": 10.0,
        "replies_200": round(10 * rate),
        **({"replies_503": failures} if failures else {}),
        "latency_ms": [ms] * 20 if rate else [],
        "other_cores": 0.01,
    }


def add_windows(run: Run, setting: Setting, first_round: int, *windows: tuple) -> None:
    run.variants[str(setting)] = asdict(setting)
    for number, window in enumerate(windows, start=first_round):
        run.add(number, str(setting), Cell(), {"ready_s": 5.0})
        run.add(number, str(setting), CELL, make_figures(*window))


def make_empty(**details) -> Run:
    return Run(
        experiment="tune",
        command="offpath tune --model near-free",
        settings={"model": "near-free", "archive": "ab", "clients": 32, "repeats": 2},
        workloads={"photos": {"identity": "cd", "count": 20, "mean_bytes": 1000}},
        host={"cpu": "some", "cores": 2, "offpath": "abc"},
        started_at="2026-01-01T00:00:00+00:00",
        details={
            "reference": asdict(PRESET),
            "preset": {**load_preset("cpu"), "handler": {"top_k": 3}},
            "p95_ms": None,
            **details,
        },
    )


def make_run(preset=(100, 102, 101), other=(120, 118, 123), **details) -> Run:
    """Four trials, then fresh rounds in which both answer in 50 ms."""
    run = make_empty(**details)
    for setting, rate, ms in (
        *((PRESET, 100, 80), (OTHER, 120, 90)),
        *((SMALL, 50, 20), (LARGE, 200, 400)),
    ):
        add_windows(run, setting, 0, *[(rate, ms)] * REPEATS)
    for setting, rates in ((PRESET, preset), (OTHER, other)):
        add_windows(run, setting, REPEATS, *((rate, 50) for rate in rates))
    return run


# What may be tried, and what comes next


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
    with pytest.raises(ExpectedError, match="--threads"):
        make_space(2, 32, {"threads": (1,)}, has_our_handler=False)


@pytest.mark.parametrize("choices", [(), (0,), (10**6,)])
def test_choices_that_torchserve_would_ignore_are_refused(choices):
    with pytest.raises(ExpectedError, match="choices of batch_size"):
        SearchSpace(choices, (1,), (1,), (1,))


def test_a_preset_is_a_setting_with_its_threads_counted():
    assert read_setting(load_preset("cpu"), cores=2) == Setting(8, 1, 2, 1)
    assert read_setting(load_preset("cpu"), cores=8).threads == 4
    own = {**load_preset("cpu"), "handler": {"threads": 3}}
    assert read_setting(own, cores=8).threads == 3
    assert read_setting(own, cores=8, has_our_handler=False).threads == 0


def choose(count: int, start: tuple[Setting, ...] = ()) -> list[Setting]:
    """Of a made-up server: larger batches are better, up to 8."""
    space = SearchSpace((1, 2, 4, 8, 16), (1, 5), (1, 2), (1, 2))
    done = list(start)
    while len(done) < count:
        scores = {s: min(s.batch_size, 8) - s.max_batch_delay_ms / 10 for s in done}
        setting = next_setting(space, scores, seed=1)
        if setting is None:
            break
        done.append(setting)
    return done


def test_no_setting_comes_twice_and_the_space_ends():
    done = choose(100)
    assert len(done) == len(set(done)) == 40


def test_an_interrupted_search_chooses_as_if_it_had_not_been():
    whole = choose(12)
    assert choose(12, start=tuple(whole[:7])) == whole


def test_good_settings_are_found_sooner_than_by_chance():
    # Two fifths of the space are among the best batch sizes.
    assert sum(setting.batch_size >= 8 for setting in choose(20)[10:]) >= 6


def test_a_preset_outside_of_the_space_does_not_disturb_the_search():
    assert len(set(choose(10, start=(Setting(7, 3, 9, 9),)))) == 10


# From rows to a choice


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
    (final,) = read_finals(run)
    assert final.outcome.rate == 900 and len(final.rounds) == 1


def test_a_setting_without_a_reply_or_a_start_has_no_latency():
    run = make_empty()
    add_windows(run, SMALL, 0, (0, 0, 5))
    run.variants[str(OTHER)] = asdict(OTHER)
    run.failures.append(Failure(0, str(OTHER), "no memory"))
    found = read_trials(run)
    assert math.isnan(found[SMALL].p95_ms) and found[SMALL].failures == 5
    assert found[OTHER].error == "no memory"


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
def test_the_score_orders_by_rate_within_the_bound_then_by_nearness(better, worse):
    assert better.score(100) > worse.score(100)
    assert rank([worse, better], 100) == [better, worse]


def test_a_setting_at_the_bound_is_within_it():
    assert outcome(1, 100).is_within(100)
    assert not outcome(1, 100.1).is_within(100)
    assert not outcome(1, 1, failures=1).is_within(100)


@pytest.mark.parametrize(
    ("bound_ms", "finalists"),
    [
        pytest.param(100, [PRESET, OTHER], id="the-best-other-within-the-bound"),
        pytest.param(85, [PRESET, SMALL], id="a-faster-one-is-beyond-it"),
        pytest.param(1000, [PRESET, LARGE], id="all-within"),
        pytest.param(30, [PRESET, SMALL], id="the-preset-is-not-within"),
        pytest.param(10, [], id="nothing-within"),
    ],
)
def test_finalists_are_the_preset_and_the_best_other(bound_ms, finalists):
    outcomes = read_trials(make_run()).values()
    assert choose_finalists(outcomes, PRESET, bound_ms) == finalists


def test_nothing_within_the_bound_names_the_best_p95_and_what_would_help():
    outcomes = read_trials(make_run()).values()
    text = explain_nothing_within(outcomes, 10, clients=32)
    assert "none of 4 candidates" in text and "best p95 is 20 ms (batch 1" in text
    assert "need about 3200 req/s, the fastest candidate gave 200" in text
    # 200 req/s within 10 ms are two clients' mean, and one client's p95.
    assert text.endswith(
        "try --p95-ms 25, which judges the same measurements anew, or --clients 1"
    )
    assert "--clients" not in explain_nothing_within(outcomes, 4, clients=32)
    assert "no memory" in explain_nothing_within([NO_START], 10, 32)


@pytest.mark.parametrize(
    ("asked_ms", "outcomes", "bound_ms"),
    [
        pytest.param(70, [outcome(9, 231)], 70, id="asked"),
        pytest.param(None, [outcome(9, 80)], 100, id="a-quarter-above-the-presets"),
        pytest.param(None, [outcome(9, 231)], 290, id="rounded-up"),
        pytest.param(None, [], math.inf, id="preset-not-measured-yet"),
        pytest.param(None, [NO_START], 100, id="preset-fails"),
    ],
)
def test_the_bound_is_the_users_or_a_quarter_above_the_presets(
    asked_ms, outcomes, bound_ms
):
    assert find_bound(asked_ms, {SMALL: o for o in outcomes}, SMALL) == bound_ms


def test_a_search_is_hopeless_when_several_are_all_far_beyond_the_bound():
    far = [outcome(10, 201)] * 6
    assert is_hopeless(far, 100)
    assert not is_hopeless(far[:5], 100)
    assert not is_hopeless([*far, outcome(10, 199)], 100)
    assert not is_hopeless([NO_START] * 9, 100)


# The verdict


def test_one_that_wins_every_round_beats_the_preset_with_its_spread():
    verdict = verdict_of(make_run([100, 100, 100], [110, 112, 130]))
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
    verdict = verdict_of(make_run(preset, other))
    assert verdict.winner == PRESET and not verdict.is_better
    assert "confirms the preset" in verdict.text


def test_the_noise_between_rounds_does_not_hide_a_gain_inside_them():
    verdict = verdict_of(make_run([100, 50, 200], [110, 55, 220]))
    assert verdict.winner == OTHER and "rounds: +10.0 % to +10.0 %" in verdict.text


def finalist(setting: Setting, ms: float) -> Finalist:
    one = replace(outcome(100, ms), setting=setting)
    return Finalist(one, [one])


@pytest.mark.parametrize(
    ("preset_ms", "other_ms", "winner", "said"),
    [
        pytest.param(90, 110, PRESET, "did not hold the bound", id="it-breaks-it"),
        pytest.param(110, 90, OTHER, "does not hold p95 100 ms", id="preset-does"),
        pytest.param(110, 120, None, "nothing held p95 100 ms", id="both-do"),
    ],
)
def test_the_bound_counts_in_fresh_rounds_too(preset_ms, other_ms, winner, said):
    finals = [finalist(PRESET, preset_ms), finalist(OTHER, other_ms)]
    verdict = judge(finals, PRESET, 100)
    assert verdict.winner == winner and said in verdict.text
    assert f"p95 {other_ms} ms, within in {int(other_ms < 100)} of 1" in verdict.text


def test_a_preset_alone_within_the_bound_is_confirmed():
    assert judge([finalist(PRESET, 50)], PRESET, 100).winner == PRESET


# The order of a search; servers and load that take no time


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


# What it shows and leaves


def test_the_tables_fit_80_columns_and_name_preset_front_and_verdict():
    run = make_run()
    run.variants[str(Setting(2, 2, 2, 2))] = asdict(Setting(2, 2, 2, 2))
    run.failures.append(Failure(0, str(Setting(2, 2, 2, 2)), "no memory"))
    console = Console(width=80, file=io.StringIO())
    print_document(document_of(run), console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text
    for part in ("preset,", "slow,", "front", "no start", "beats the preset by"):
        assert part in text
    assert "p95 within 100 ms first" in text and "no memory" in text


def test_the_chart_has_the_bound_the_winner_and_the_front():
    (chart,) = document_of(make_run(p95_ms=95)).headline
    assert chart.bound == (95, "95 ms")
    assert [dot.x for dot in chart.dots if dot.is_strong] == [120]
    # Whom no other beats in both.
    assert [dot.x for dot in chart.front] == [200, 120, 100, 50]


def test_the_winner_is_a_preset_that_offpath_archive_takes(tmp_path):
    path, run = tmp_path / "tuned.yaml", make_run()
    write_preset(path, run, verdict_of(run))
    config = make_model_config(load_preset(str(path)), {}, {})
    assert config["handler"] == {"top_k": 3, "threads": OTHER.threads}
    assert (config["batchSize"], config["maxBatchDelay"]) == (16, 5)
    assert (config["minWorkers"], config["maxWorkers"]) == (2, 2)
    assert config["responseTimeout"] == load_preset("cpu")["responseTimeout"]
    assert path.read_text().startswith("# 2026-01-01")


def test_the_last_line_says_how_to_build_the_winner():
    run = make_run()
    text = format_outcome(run, verdict_of(run), Path("tuned.yaml"))
    assert f"winner: {OTHER}: 120.0 req/s (118.0 to 123.0 in 3 fresh rounds)" in text
    assert text.endswith(
        "bound 100 ms; build with: offpath archive --preset tuned.yaml"
    )


def test_the_last_line_says_to_keep_a_preset_that_is_confirmed():
    run = make_run([100, 100, 100], [80, 90, 70])
    text = format_outcome(run, verdict_of(run), Path("tuned.yaml"))
    assert text.startswith(f"keep the preset: {PRESET}: 100.0 req/s")
    assert "nothing to rebuild" in text


def test_an_existing_preset_is_not_overwritten_unasked(tmp_path):
    path = tmp_path / "tuned.yaml"
    check_writable(path, force=False)
    path.touch()
    with pytest.raises(ExpectedError, match="--force"):
        check_writable(path, force=False)
    check_writable(path, force=True)
    with pytest.raises(ExpectedError, match="folder"):
        check_writable(tmp_path, force=True)
