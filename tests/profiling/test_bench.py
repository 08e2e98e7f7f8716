"""The order of a run and what remains of one that fails, on servers that are quick to start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from offpath.handler.config import HandlerConfig
from offpath.profiling.experiments.bench import (
    BenchPlan,
    Windows,
    measure_quietly,
    run_bench,
)
from offpath.profiling.load.bodies import Bodies
from offpath.profiling.load.call import NPY, Call
from offpath.profiling.load.limits import Rate
from offpath.profiling.load.model_under_test import Answer
from offpath.profiling.load.plan import find_generator
from offpath.profiling.load.workload import describe
from offpath.serving.client import make_npy
from tests.profiling.quick_server import Listener, QuickServer
from tests.profiling.results import make_result
from tests.support.photographs import find_photograph

pytestmark = pytest.mark.timing

RIGHT = Answer("cat", 0.74, lead=3.0)


class Steps:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def on_step(self, text: str) -> None:
        self.steps.append(text)


class QuickMeter:
    def measure_decode(self, paths) -> Rate:
        return Rate(10, 1.0, 2.0)

    def measure_forward(self, own=None) -> Rate:
        return Rate(30, 1.0, 2.0)

    def other_cores(self, rate: Rate) -> float:
        return 0.0


def make_plan(
    tmp_path: Path, servers: list[QuickServer], answer: Answer, **changes
) -> BenchPlan:
    path = tmp_path / "a.jpg"
    path.write_bytes(find_photograph("china").path.read_bytes())
    values = {
        "workloads": [describe("photos", [path], ["00"])],
        "servers": servers,
        "generator": find_generator("locust"),
        "rounds": 2,
        "windows": Windows(
            clients=2,
            warm_up_s=0.1,
            seconds=0.5,
            requests=None,
            rate=None,
            min_replies=4,
            seed=0,
        ),
        "cold_start": False,
        "checks": {"photos": [(path.read_bytes(), answer)]},
        "bodies": Bodies(tmp_path / "bodies", HandlerConfig()),
    }
    return BenchPlan(**(values | changes))


def run(plan: BenchPlan):
    result, listener = make_result(limits=[], measurements=[]), Listener()
    run_bench(plan, result, QuickMeter(), listener)
    assert not any(psutil.pid_exists(pid) for s in plan.servers for pid in s.pids)
    return result, listener


def test_rounds_are_interleaved_and_saved_after_each_server(tmp_path):
    servers = [QuickServer("a"), QuickServer("b")]
    result, listener = run(make_plan(tmp_path, servers, RIGHT))
    order = [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    assert [(m.round, m.server) for m in result.measurements] == order
    assert [(s.round, s.server) for s in result.starts] == order
    assert [limit.kind for limit in result.limits] == ["decode", "forward"] * 2
    assert listener.saves == 6
    for m in result.measurements:
        assert set(m.statuses) == {"200"}
        assert m.answer_difference == pytest.approx(0.01)
        assert {"frontend", "workers", "generator", "other"} == set(m.cpu_s)
        assert 0 < m.pss_bytes["frontend"] <= m.rss_bytes["frontend"]
    # A fresh process for each round.
    assert len(set(servers[0].pids)) == 2
    assert result.failures == []


def test_side_by_side_each_server_starts_once_and_all_take_turns(tmp_path):
    servers = [QuickServer("a"), QuickServer("b")]
    result, listener = run(make_plan(tmp_path, servers, RIGHT, side_by_side=True))
    order = [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
    assert [(m.round, m.server) for m in result.measurements] == order
    assert [(s.round, s.server) for s in result.starts] == order[:2]
    assert [len(server.pids) for server in servers] == [1, 1]
    assert [limit.kind for limit in result.limits] == ["decode", "forward"] * 2
    assert listener.saves == 6 and result.failures == []


def test_side_by_side_a_server_that_dies_is_left_out_and_the_rest_go_on(tmp_path):
    servers = [QuickServer("frail", dies=True), QuickServer("steady")]
    result, _ = run(make_plan(tmp_path, servers, RIGHT, side_by_side=True))
    assert [m.server for m in result.measurements] == ["steady", "steady"]
    assert [(f.server, f.round) for f in result.failures] == [("frail", 0)]


def measure_in_turn(*others: float, tries: int) -> tuple[float, int, list[str]]:
    """Windows during which so many cores were busy with something else."""
    left, said = list(others), Steps()
    best, count = measure_quietly(lambda: left.pop(0), float, tries, said)
    return best, count, said.steps


def test_a_disturbed_window_is_measured_again_until_one_is_quiet():
    best, count, said = measure_in_turn(1.2, 0.5, 0.05, 0.01, tries=4)
    assert (best, count) == (0.05, 3)
    assert said == [
        f"{cores} cores were busy with something else: again" for cores in (1.2, 0.5)
    ]


def test_the_quietest_window_is_taken_where_none_is_quiet():
    assert measure_in_turn(1.2, 0.5, 0.7, tries=3)[:2] == (0.5, 3)
    assert measure_in_turn(1.2, tries=1) == (1.2, 1, [])


def test_a_server_that_dies_is_left_out_and_the_rest_go_on(tmp_path):
    servers = [QuickServer("steady"), QuickServer("frail", dies=True)]
    result, listener = run(make_plan(tmp_path, servers, RIGHT))
    assert [m.server for m in result.measurements] == ["steady", "steady"]
    (failure,) = result.failures
    assert (failure.server, failure.round) == ("frail", 0)
    assert "died under load" in failure.reason and "the.log" in failure.reason
    assert [name for name, _ in listener.failures] == ["frail"]


@pytest.mark.parametrize("side_by_side", [False, True])
def test_a_workload_answered_wrongly_leaves_the_window_before_it(
    side_by_side, tmp_path
):
    plan = make_plan(tmp_path, [QuickServer("a")], RIGHT, side_by_side=side_by_side)
    (first,) = plan.workloads
    second = replace(first, name="others")
    wrong = [(body, Answer("dog", 0.74, lead=3.0)) for body, _ in plan.checks["photos"]]
    checks = {**plan.checks, "others": wrong}
    result, _ = run(replace(plan, workloads=[first, second], checks=checks))
    assert [(m.round, m.workload) for m in result.measurements] == [(0, "photos")]
    assert [failure.server for failure in result.failures] == ["a"]


def test_a_server_that_does_not_start_is_left_out(tmp_path):
    servers = [QuickServer("refusing", refuses=True), QuickServer("steady")]
    result, _ = run(make_plan(tmp_path, servers, RIGHT, rounds=1))
    assert [m.server for m in result.measurements] == ["steady"]
    assert "taken" in result.failures[0].reason


def test_ctrl_c_keeps_the_finished_windows_and_leaves_no_process(tmp_path):
    class Stopping(Listener):
        def on_step(self, text: str) -> None:
            if text.startswith("round 1/2: b: photos"):
                raise KeyboardInterrupt

    servers = [QuickServer("a"), QuickServer("b")]
    result = make_result(limits=[], measurements=[])
    with pytest.raises(KeyboardInterrupt):
        run_bench(make_plan(tmp_path, servers, RIGHT), result, QuickMeter(), Stopping())
    assert [m.server for m in result.measurements] == ["a"]
    assert len(servers[1].pids) == 1
    assert not any(psutil.pid_exists(pid) for s in servers for pid in s.pids)


@pytest.mark.parametrize(
    "reference",
    [
        pytest.param(Answer("dog", 0.75, 3.0), id="other-label"),
        pytest.param(Answer("cat", 0.79, 3.0), id="other-probability"),
    ],
)
def test_no_number_is_taken_from_a_server_that_answers_otherwise(tmp_path, reference):
    result, _ = run(make_plan(tmp_path, [QuickServer("wrong")], reference, rounds=1))
    assert result.measurements == []
    assert "would not be comparable" in result.failures[0].reason


def test_a_reply_that_cannot_be_read_is_said(tmp_path):
    def read(reply: bytes) -> dict[str, float]:
        raise ValueError("no JSON")

    plan = make_plan(tmp_path, [QuickServer("odd", call=Call(read_reply=read))], RIGHT)
    result, _ = run(plan)
    assert "cannot be read" in result.failures[0].reason


def test_a_cold_start_has_the_first_request_beside_the_steady_ones(tmp_path):
    plan = make_plan(tmp_path, [QuickServer("a")], RIGHT, rounds=1, cold_start=True)
    (start,) = run(plan)[0].starts
    # The server holds each request for 10 ms.
    assert start.ready_s > 0.01 and start.first_ms > 10 and start.steady_ms > 10


def test_a_thin_client_sends_pixels_made_before_the_run(tmp_path):
    plan = make_plan(tmp_path, [], RIGHT)
    (photograph,) = plan.workloads[0].read()
    thin = Call(content=NPY)
    (path,) = plan.bodies.paths(plan.workloads[0], thin)
    assert path.read_bytes() == make_npy(photograph)
    assert thin.all_headers["Content-Type"] == "application/x-npy"
    wrapped = Call(wrap=lambda body: b"<" + body + b">", headers={"x-a": "1"})
    (path,) = plan.bodies.paths(plan.workloads[0], wrapped)
    assert path.read_bytes() == b"<" + photograph + b">"
    assert plan.bodies.paths(plan.workloads[0], Call()) == plan.workloads[0].paths
