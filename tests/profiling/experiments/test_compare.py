"""A comparison's measurements, on servers that are quick to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.experiments.compare import Choices, run_compare
from offpath.profiling.load.model_under_test import ExpectedReply
from offpath.profiling.load.window import Load
from tests.profiling.experiments.quick import (
    CAT,
    LISTENER,
    METER,
    QuickServer,
    are_gone,
    make_workload,
    serve,
)


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
    monkeypatch.setattr("offpath.profiling.experiments.compare.LimitMeter", lambda *_: METER)

    def run(servers: list[QuickServer], expected: ExpectedReply = CAT, **changes: Any) -> Run:
        serve(monkeypatch, servers, expected)
        saved: list[int] = []
        measured = run_compare(
            make_choices([make_workload(tmp_path)], **changes),
            LISTENER,
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
        # Of one Python process.
        assert 1 < summary.value(server, cell, "pss_mb") <= summary.value(server, cell, "rss_mb")
        assert 0 < summary.value(server, cell, "cpu_ms") < 100
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


def test_no_number_is_taken_from_a_server_that_answers_otherwise(compare):
    run = compare([QuickServer("wrong")], ExpectedReply("dog", 0.75, 3.0))
    assert list_windows(run) == []
    assert "would not be comparable" in run.failures[0].reason


@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_run_that_is_interrupted_ends_every_server(compare, side_by_side, monkeypatch, tmp_path):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    servers = [QuickServer("a"), QuickServer("b")]
    monkeypatch.setattr("offpath.profiling.experiments.compare.measure_load", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compare(servers, side_by_side=side_by_side)
    assert servers[0].pids and are_gone(servers)
