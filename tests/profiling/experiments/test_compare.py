"""A comparison's measurements, on servers that are quick to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.core.run import Cell, Run, load_run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.experiments.compare import Choices, run_compare
from offpath.profiling.experiments.compare_report import document_of
from offpath.profiling.load.model_under_test import ExpectedReply
from offpath.profiling.load.window import Load
from tests.profiling.experiments.quick import (
    CAT,
    QuickMeter,
    are_gone,
    make_workload,
    serve,
)
from tests.profiling.quick_server import Listener, QuickServer
from tests.profiling.runs import PHOTOS, make_compare, make_window
from tests.support.documents import read_tables


def make_choices(workloads: list[str], **changes: Any) -> Choices:
    values: dict[str, Any] = {
        "workloads": tuple(workloads),
        "model": "near-free",
        "servers": ("a", "b"),
        "clients": (2,),
        "load": Load(seconds=0.3, warm_up_s=0.02),
        "rounds": 2,
        "command": "offpath bench compare",
    }
    return Choices(**(values | changes))


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a comparison of quick servers."""
    monkeypatch.setattr("offpath.profiling.experiments.compare.LimitMeter", QuickMeter)

    def run(servers: list[QuickServer], expected: ExpectedReply = CAT, **changes: Any) -> Run:
        serve(monkeypatch, servers, expected)
        names = changes.pop("names", ["photos"])
        listener = changes.pop("listener", Listener())
        folders = [make_workload(tmp_path, name) for name in names]
        saved: list[int] = []
        measured = run_compare(
            make_choices(folders, **changes),
            listener,
            lambda run: saved.append(len(run.rows)),
        )
        assert are_gone(servers) and saved[-1] == len(measured.rows)
        # Nothing was measured when it was asked first.
        assert saved[0] == 0
        return measured

    return run


def list_windows(run: Run) -> list[tuple[int, str, int]]:
    return [
        (row.round, row.variant, row.clients) for row in run.rows if row.metric == "replies_200"
    ]


def test_each_window_has_replies_cost_memory_and_the_replies_difference(compare):
    servers = [QuickServer("a"), QuickServer("b")]
    run = compare(servers)
    assert list_windows(run) == [(0, "a", 2), (0, "b", 2), (1, "a", 2), (1, "b", 2)]
    # A fresh process for each round.
    assert len(set(servers[0].pids)) == 2 and run.failures == []
    (workload,) = run.workloads
    cell, summary = Cell(workload, 2), Summary(run)
    # 10 and 30 images per second alone.
    assert summary.limits.both(workload) == pytest.approx(7.5)
    for server in ("a", "b"):
        assert {name for name in summary.metrics(server, cell)} >= {
            *("elapsed_s", "replies_200", "other_cores", "rate"),
            *("cpu_s.frontend", "cpu_s.workers", "cpu_s.generator", "cpu_s.other"),
            *("latency_ms.p50", "cpu_ms", "rss_mb", "pss_mb", "decode_percent"),
        }
        assert summary.value(server, cell, "answer_difference") == 0.01
        # Each request is held for 10 ms.
        assert summary.value(server, cell, "latency_ms.p50") > 10
        assert summary.value(server, Cell(), "ready_s") > 0.01
    assert run.variants["a"] == {"batch_size": 8}
    assert run.settings["clients"] == [2] and run.settings["model"] == "near-free"


def test_a_server_meets_all_numbers_of_clients_after_one_start(compare):
    servers = [QuickServer("a"), QuickServer("b")]
    run = compare(servers, clients=(1, 4), batch_size=1, rounds=1)
    assert list_windows(run) == [(0, "a", 1), (0, "a", 4), (0, "b", 1), (0, "b", 4)]
    assert [len(server.pids) for server in servers] == [1, 1]
    summary, (workload,) = Summary(run), run.workloads
    one, four = (summary.value("a", Cell(workload, n), "replies_200") for n in (1, 4))
    assert four == 4 * one > 0
    assert run.variants["a"]["batch_size"] == 1


@pytest.mark.parametrize("side_by_side", [False, True])
def test_one_that_dies_refuses_or_cannot_run_leaves_the_others(compare, side_by_side):
    servers = [
        QuickServer("unbuilt", unbuilt=True),
        QuickServer("frail", dies=True),
        QuickServer("refusing", refuses=True),
        QuickServer("absent", cannot="no binary"),
        QuickServer("steady"),
    ]
    run = compare(servers, side_by_side=side_by_side)
    assert list_windows(run) == [(0, "steady", 2), (1, "steady", 2)]
    reasons = {failure.variant: failure.reason for failure in run.failures}
    assert "died under load" in reasons["frail"] and "the.log" in reasons["frail"]
    assert reasons["unbuilt"] == "no archiver"
    assert "taken" in reasons["refusing"] and run.not_run == {"absent": "no binary"}
    assert "absent" not in run.variants


@pytest.mark.parametrize(
    "reference",
    [
        pytest.param(ExpectedReply("dog", 0.75, 3.0), id="other-label"),
        pytest.param(ExpectedReply("cat", 0.79, 3.0), id="other-probability"),
    ],
)
def test_no_number_is_taken_from_a_server_that_answers_otherwise(compare, reference):
    run = compare([QuickServer("wrong")], reference)
    assert list_windows(run) == []
    assert "would not be comparable" in run.failures[0].reason


def test_a_workload_answered_wrongly_leaves_the_window_before_it(compare, monkeypatch):
    # At the start, on the first workload, on the second.
    told = iter([CAT, CAT, ExpectedReply("dog", 0.74, 3.0)])
    server = QuickServer("a")
    choices = {"names": ["first", "second"], "rounds": 1}

    def check(*_: object) -> float:
        if next(told) != CAT:
            raise ExpectedError("another label")
        return 0.0

    monkeypatch.setattr("offpath.profiling.experiments.compare.check_replies", check)
    run = compare([server], **choices)
    assert len(list_windows(run)) == 1 == len(run.failures)


def test_side_by_side_each_is_started_once_and_all_take_turns(compare):
    servers = [QuickServer("a"), QuickServer("b")]
    run = compare(servers, side_by_side=True)
    assert list_windows(run) == [(0, "a", 2), (0, "b", 2), (1, "a", 2), (1, "b", 2)]
    assert [len(server.pids) for server in servers] == [1, 1]
    starts = [(row.round, row.variant) for row in run.rows if row.metric == "ready_s"]
    assert starts == [(0, "a"), (0, "b")]


@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_run_that_is_interrupted_ends_every_server(compare, side_by_side, monkeypatch, tmp_path):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    servers = [QuickServer("a"), QuickServer("b")]
    monkeypatch.setattr("offpath.profiling.experiments.compare.measure_load", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compare(servers, side_by_side=side_by_side)
    assert servers[0].pids and are_gone(servers)


def read_section(run: Run, heading: str) -> list[list[str]]:
    """Returns the lines of a section's only table."""
    (section,) = [s for s in document_of(run, None).sections if s.heading == heading]
    (table,) = read_tables(section.tables)
    return table


def test_the_tables_have_ratios_shares_and_failures():
    run = make_compare()
    window = make_window(1210, replies_503=7, answer_difference=0.00123)
    run.add(3, "offpath", PHOTOS, window)
    assert read_section(run, "photos: requests per second") == [
        ["", "req/s", "range", "x", "% decode", "diff", "failed"],
        ["torchserve-stock", "11.0", "10.0-12.0", "1.00", "6", "", "0"],
        ["offpath", "121", "100-150", "11.0", "60", "0.0012", "7 x 503"],
    ]
    assert "relative to torchserve-stock" in document_of(run, None).sections[0].tables
    assert read_section(run, "Starts")[1:] == [["offpath", "6.00", "5.00-7.00"]]
    allowed = read_section(run, "What the cores allow")
    assert allowed[1:] == [["photos", "200", "600", "150"]]


# By default, limits are shown by themselves (test_limits.py).
@pytest.mark.slow
@pytest.mark.server
def test_our_server_is_measured_beside_the_limits(tmp_path):
    folder, saved = make_workload(tmp_path), tmp_path / "run.json"
    choices = make_choices(
        [folder],
        servers=("offpath",),
        load=Load(seconds=1, min_replies=16, warm_up_s=0),
        rounds=1,
    )
    run = run_compare(choices, Listener(), lambda run: run.save(saved))
    assert run.failures == [] and load_run(saved) == run
    summary, cell = Summary(run), Cell(folder, 2)
    assert summary.value("offpath", cell, "replies_200") >= 16
    assert 0 < summary.value("offpath", cell, "decode_percent")
    assert 0 < summary.value("offpath", cell, "answer_difference") < 0.03
    assert summary.value("offpath", cell, "pss_mb") > 100
    assert summary.value("offpath", Cell(), "ready_s") > 1
