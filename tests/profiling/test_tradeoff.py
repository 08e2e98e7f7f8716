"""Which settings a trade-off measures, in which order, and what its tables and charts show."""

from __future__ import annotations

import io

import pytest
from click.testing import CliRunner
from rich.console import Console

from offpath.commands.bench_tradeoff import command
from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.tradeoff import (
    DELAY,
    SIZE,
    WORKERS,
    TradeoffChoices,
    TradeoffSweep,
    estimate_s,
    list_candidates,
)
from offpath.profiling.experiments.tradeoff_report import (
    print_tradeoff,
    save_tradeoff_plot,
    write_tradeoff_page,
)
from offpath.profiling.experiments.tradeoff_result import TRADEOFF
from offpath.profiling.experiments.tradeoff_summary import summarise_tradeoff
from offpath.profiling.experiments.tuning.space import Candidate
from offpath.profiling.load.workload import describe
from offpath.profiling.servers.registering import ServerDied
from tests.profiling.tradeoffs import KNOBS, make_tradeoff
from tests.profiling.tuning.test_tuning_search import (
    Listener,
    QuickGenerator,
    QuickServer,
)
from tests.profiling.tunings import PRESET
from tests.support.pages import list_requests


def make_choices() -> TradeoffChoices:
    return TradeoffChoices(
        model="near-free",
        preset=None,
        workload="photos",
        knobs={DELAY: (1, 2), SIZE: (1, 8), WORKERS: (1, 2)},
        clients=(1, 32),
        rounds=2,
        seconds=4.0,
        warm_up_s=3.0,
        settle_s=0.0,
        generator="locust",
        seed=0,
        command="offpath bench tradeoff",
    )


@pytest.fixture()
def sweep(tmp_path) -> TradeoffSweep:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"picture")
    result = make_tradeoff()
    result.points = []
    return TradeoffSweep(
        make_choices(),
        describe("photos", [path], ["00"]),
        QuickGenerator(),
        Listener(),
        result,
        lambda measured: None,
    )


@pytest.mark.parametrize(
    ("option", "value"), [("--workers", "0"), ("--clients", "a"), ("--plot", "x.pdf")]
)
def test_wrong_input_is_refused_before_a_server_starts(option, value):
    with pytest.raises(ExpectedError, match=value):
        CliRunner().invoke(command, [option, value], catch_exceptions=False)


def test_each_knob_is_turned_alone_and_the_preset_comes_once():
    found = list_candidates(PRESET, KNOBS, cores=2)
    assert found[0] == PRESET and len(set(found)) == len(found) == 6
    assert Candidate(8, 20, 2, 1) in found and Candidate(1, 2, 2, 1) in found


def test_the_workers_share_the_cores_as_threads():
    found = list_candidates(PRESET, {WORKERS: (1, 2, 4)}, cores=2)
    assert [(c.workers, c.threads) for c in found] == [(2, 1), (1, 2), (4, 1)]


def test_the_time_grows_with_settings_rounds_and_clients():
    assert estimate_s(make_choices(), 4) == 2 * 4 * (8 + 2 * 8)


def test_every_setting_meets_every_number_of_clients(sweep):
    sweep.measure(QuickServer(), 0, PRESET)
    assert [point.clients for point in sweep.result.points] == [1, 32]


def test_a_setting_that_does_not_serve_is_left_out_with_its_reason(sweep):
    server = QuickServer(ExpectedError)
    for round_ in range(2):
        sweep.measure(server, round_, Candidate(8, 2, 1, 2))
    assert len(server.served) == 1
    assert list(sweep.result.failures.values()) == ["no memory"]


def test_a_dead_server_ends_the_run(sweep):
    with pytest.raises(ServerDied):
        sweep.measure(QuickServer(ServerDied), 0, Candidate(8, 2, 1, 2))


def test_a_knobs_line_has_its_own_settings_and_the_preset():
    figures = summarise_tradeoff(make_tradeoff())
    found = {
        (f.value, f.clients): (f.summary.rate, f.summary.p95_ms, f.is_preset)
        for f in figures
        if f.knob == DELAY
    }
    assert found[20, 32] == (205, 52, False)
    assert found[2, 1] == (205, 3, True)
    rates = [f.summary.rate for f in figures if f.knob == WORKERS and f.clients == 1]
    assert rates == [105, 205, 405]


def test_a_saved_tradeoff_reads_back_and_another_file_is_refused(tmp_path):
    path = tmp_path / "tradeoff.json"
    TRADEOFF.save(make_tradeoff(), path)
    assert TRADEOFF.load(path) == make_tradeoff()
    path.write_text('{"format": "other/1"}')
    with pytest.raises(ExpectedError, match="cannot read"):
        TRADEOFF.load(path)


def test_the_tables_have_every_value_and_mark_the_presets():
    text = io.StringIO()
    print_tradeoff(make_tradeoff(), Console(file=text, width=80))
    shown = text.getvalue()
    for expected in ("max batch delay", "2 *", "8 *", "batch size", "32: req/s", "405"):
        assert expected in shown


def test_the_page_has_two_charts_a_knob_and_loads_nothing(tmp_path):
    path = tmp_path / "tradeoff.html"
    write_tradeoff_page(make_tradeoff(), path)
    page = path.read_text()
    for title in ("Requests a second against", "Latency against"):
        assert page.count(title) >= 3
    assert list_requests(page) == []
    assert "Between the rounds" in page


def test_the_drawing_is_the_same_file_each_time(tmp_path):
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        save_tradeoff_plot(make_tradeoff(), path)
    assert first.read_bytes() == second.read_bytes() != b""
