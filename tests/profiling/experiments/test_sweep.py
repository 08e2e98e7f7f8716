"""Sweep: steps, and the charts against the number of clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.experiments.server_experiment import Choices
from offpath.profiling.experiments.sweep import run_sweep
from offpath.profiling.experiments.sweep_report import document_of
from offpath.profiling.load.plan import Load
from offpath.profiling.report.charts import LineChart
from tests.profiling.experiments.quick import are_gone, make_workload, serve
from tests.profiling.quick_server import Listener, QuickServer
from tests.profiling.runs import make_run, make_window
from tests.support.documents import read_tables


def make_choices(folder: str, **changes: Any) -> Choices:
    values: dict[str, Any] = {
        "clients": (1, 4),
        "workloads": (folder,),
        "model": "near-free",
        "servers": ("a", "b"),
        "batch_size": 1,
        "load": Load(seconds=0.3, warm_up_s=0.02),
        "rounds": 1,
        "command": "offpath bench sweep",
    }
    return Choices(**(values | changes))


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a sweep of quick servers."""

    def run(*servers: QuickServer, **changes: Any) -> Run:
        serve(monkeypatch, servers)
        choices = make_choices(make_workload(tmp_path), **changes)
        measured = run_sweep(choices, Listener(), lambda run: None)
        assert are_gone(servers)
        return measured

    return run


def list_steps(run: Run) -> list[tuple[int, str, int]]:
    return [
        (row.round, row.variant, row.clients) for row in run.rows if row.metric == "replies_200"
    ]


def test_a_server_is_started_once_and_meets_all_steps(sweep):
    servers = QuickServer("a"), QuickServer("b")
    run = sweep(*servers)
    steps = [(0, "a", 1), (0, "a", 4), (0, "b", 1), (0, "b", 4)]
    assert list_steps(run) == steps
    assert [len(server.pids) for server in servers] == [1, 1]
    summary, (workload,) = Summary(run), run.workloads
    one, four = (summary.value("a", Cell(workload, n), "replies_200") for n in (1, 4))
    assert four == 4 * one > 0
    assert run.variants["a"]["batch_size"] == 1


def test_a_run_says_in_advance_how_long_it_takes():
    load = Load(seconds=10, warm_up_s=20)
    # Two servers: a start of 10 s, 20 s of warm-up, two steps of 10 s, 2 s before the second.
    assert make_choices("", load=load).estimated_s == 2 * (30 + 20 + 2)


def test_charts_and_tables_are_against_clients():
    run = make_run("sweep")
    for clients, good in ((1, 500), (16, 900)):
        run.add(0, "offpath", Cell("photos", clients), make_window(good, replies_503=7))
    document = document_of(run, None)
    section, *_ = document.sections
    charts = [chart for chart in section.charts if isinstance(chart, LineChart)]
    assert [chart.series[0].points[1][0] for chart in charts] == [16.0] * 4
    assert [chart.series[0].points for chart in charts][::3] == [
        [(1.0, 50.0), (16.0, 90.0)],
        [(1.0, 7.0), (16.0, 7.0)],
    ]
    assert [chart.title for chart in document.headline] == ["photos: Requests per second"]
    (table,) = read_tables(section.tables)
    assert table[2] == ["offpath", "16", "90.0", "50.5", "95.0", "7 x 503"]
