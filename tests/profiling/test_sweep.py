"""Steps, restarts and what remains, on servers that are quick to start."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from offpath.handler.errors import ExpectedError
from offpath.profiling.experiments.sweep import Sweep, SweepChoices, begin_result
from offpath.profiling.experiments.sweep_report import print_sweep, write_sweep_page
from offpath.profiling.experiments.sweep_result import (
    SWEEP,
    SweepResult,
)
from offpath.profiling.load.model_under_test import Answer
from offpath.profiling.load.workload import describe
from offpath.profiling.report.plot import save_sweep_plot
from tests.profiling.quick_server import Listener, QuickServer
from tests.profiling.results import make_sweep


def make_choices(scenario: str) -> SweepChoices:
    return SweepChoices(
        scenario=scenario,
        users=(1, 4),
        workload="photos",
        model="near-free",
        servers=("a", "b"),
        batch_size=1,
        seconds=0.4,
        warm_up_s=0.1,
        seed=0,
        command="offpath bench sweep",
    )


class ReadySweep(Sweep):
    """One whose photographs and answers are there, so that no model runs."""

    def measure_quick(self, servers: list[QuickServer], folder: Path) -> SweepResult:
        path = folder / "a.jpg"
        path.write_bytes(b"picture")
        self._workload = describe("photos", [path], ["00"])
        self.result = begin_result(self._choices, self._workload, servers, {})
        self.measure(
            servers, [(b"picture", Answer("cat", 0.75, 3.0))], bodies=_Plain([path])
        )
        return self.result


class _Plain:
    def __init__(self, paths: list[Path]) -> None:
        self._paths = tuple(paths)

    def make(self, photograph, call):
        return photograph

    def paths(self, workload, call):
        return self._paths


def sweep(scenario: str, servers: list[QuickServer], folder: Path):
    saved: list[int] = []
    running = ReadySweep(
        make_choices(scenario), Listener(), lambda r: saved.append(len(r.steps))
    )
    return running.measure_quick(servers, folder), saved


def test_restart_starts_a_server_before_each_step_and_keep_once(tmp_path, monkeypatch):
    monkeypatch.setattr("offpath.profiling.experiments.sweep.SETTLE_S", 0.1)
    servers = [QuickServer("a"), QuickServer("b")]
    result, saved = sweep("restart", servers, tmp_path)
    assert [(s.server, s.users) for s in result.steps] == [
        ("a", 1),
        ("b", 1),
        ("a", 4),
        ("b", 4),
    ]
    assert len(set(servers[0].pids)) == 2 and saved == [1, 2, 3, 4]
    kept = QuickServer("a")
    result, _ = sweep("keep", [kept], tmp_path)
    assert [s.users for s in result.steps] == [1, 4] and len(kept.pids) == 1
    one, four = result.steps
    # Each request is held for 10 ms.
    assert four.rate > 1.5 * one.rate


def test_a_run_says_in_advance_how_long_it_takes():
    # Two servers: a start of 10 s and 0.1 s of warm-up, two steps of 0.4 s.
    assert make_choices("restart").estimated_s == pytest.approx(2 * 2 * (10.1 + 0.4))
    assert make_choices("keep").estimated_s == pytest.approx(2 * (10.1 + 0.8 + 2))


def test_a_server_that_dies_or_refuses_leaves_the_other_steps(tmp_path):
    servers = [
        QuickServer("frail", dies=True),
        QuickServer("refusing", refuses=True),
        QuickServer("steady"),
    ]
    result, _ = sweep("restart", servers, tmp_path)
    assert [s.server for s in result.steps] == ["steady", "steady"]
    # A dead one is started again for the next step; one that does not start is left out.
    assert [(f.server, f.users) for f in result.failures] == [
        ("frail", 1),
        ("refusing", 1),
        ("frail", 4),
    ]


def test_a_saved_sweep_reads_back(tmp_path):
    path = tmp_path / "sweep.json"
    SWEEP.save(make_sweep(), path)
    assert SWEEP.load(path) == make_sweep()
    path.write_text('{"format": "other/1"}')
    with pytest.raises(ExpectedError, match="cannot read"):
        SWEEP.load(path)


def test_the_report_has_rates_failures_and_who_is_missing():
    text = io.StringIO()
    print_sweep(make_sweep(), Console(file=text, width=80))
    shown = text.getvalue()
    assert "90.0" in shown and "7 x 503" in shown and "no binary" in shown


def test_a_sweep_is_drawn_with_all_servers_as_the_same_file_each_time(tmp_path):
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        save_sweep_plot(make_sweep(), path)
    assert first.read_bytes() == second.read_bytes() != b""
    write_sweep_page(make_sweep(), tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "triton" in page and "503" in page
