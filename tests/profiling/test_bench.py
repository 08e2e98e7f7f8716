"""The order of a run and what remains of one that fails, on servers that are quick to start."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from handler.config import HandlerConfig
from offpath.errors import ExpectedError
from profiling.bench import BenchPlan, run_bench
from profiling.bodies import Bodies
from profiling.limits import Rate
from profiling.load import find_generator
from profiling.model_under_test import Answer
from profiling.servers.call import Call
from profiling.workload import describe
from tests.profiling.results import make_result

SCRIPT = Path(__file__).with_name("known_server.py")


class QuickServer:
    """A real server in a process of its own; answers {"cat": 0.75}."""

    call = Call()
    batch_size = 8

    def __init__(self, name: str, dies: bool = False) -> None:
        self.name, self.settings, self.dies = name, {}, dies
        self.pids: list[int] = []

    def why_not(self) -> str | None:
        return None

    def prepare(self, folder: Path) -> None:
        pass

    @contextmanager
    def running(self):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "0.01"], stdout=subprocess.PIPE, text=True
        )
        self.pids.append(process.pid)
        self.process = process
        try:
            self.predict_url = process.stdout.readline().strip()
            yield self
        finally:
            process.kill()
            process.communicate()

    def groups(self):
        return {"frontend": [self.process.pid], "workers": []}

    def is_running(self) -> bool:
        if self.dies:
            self.process.kill()
            self.process.wait()
        return self.process.poll() is None

    def log_path(self) -> Path:
        return Path("the.log")


class QuickMeter:
    def measure_decode(self, paths) -> Rate:
        return Rate(10, 1.0, 2.0)

    def measure_forward(self) -> Rate:
        return Rate(30, 1.0, 2.0)


class Listener:
    def __init__(self) -> None:
        self.steps: list[str] = []
        self.saves = 0

    def on_step(self, text: str) -> None:
        self.steps.append(text)

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        pass

    def on_measured(self) -> None:
        self.saves += 1


def make_plan(tmp_path: Path, servers: list[QuickServer], answer: Answer) -> BenchPlan:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"picture")
    workload = describe("photos", [path], ["00"])
    return BenchPlan(
        workloads=[workload],
        servers=servers,
        generator=find_generator("locust"),
        clients=2,
        rounds=2,
        seconds=1,
        requests=None,
        warm_up_s=0.2,
        seed=0,
        checks={"photos": [(b"picture", answer)]},
        bodies=Bodies(tmp_path, HandlerConfig()),
    )


RIGHT = Answer("cat", 0.74, lead=3.0)


def test_rounds_are_interleaved_and_saved_after_each_server(tmp_path):
    servers = [QuickServer("a"), QuickServer("b")]
    result, listener = make_result(limits=[], measurements=[]), Listener()
    run_bench(make_plan(tmp_path, servers, RIGHT), result, QuickMeter(), listener)
    assert [(m.round, m.server) for m in result.measurements] == [
        (0, "a"),
        (0, "b"),
        (1, "a"),
        (1, "b"),
    ]
    assert [limit.kind for limit in result.limits] == ["decode", "forward"] * 2
    assert listener.saves == 6
    for m in result.measurements:
        assert set(m.statuses) == {"200"}
        assert m.answer_difference == pytest.approx(0.01)
        assert {"frontend", "workers", "generator", "other"} == set(m.cpu_s)
    # A fresh process for each round, none left.
    assert len(set(servers[0].pids)) == 2
    assert not any(psutil.pid_exists(pid) for s in servers for pid in s.pids)


def test_a_server_that_dies_mid_run_is_an_error_and_finished_rounds_stay(tmp_path):
    servers = [QuickServer("steady"), QuickServer("frail", dies=True)]
    result = make_result(limits=[], measurements=[])
    with pytest.raises(ExpectedError, match=r"'frail' died under load.*the\.log"):
        run_bench(make_plan(tmp_path, servers, RIGHT), result, QuickMeter(), Listener())
    assert [m.server for m in result.measurements] == ["steady"]
    assert not any(psutil.pid_exists(pid) for s in servers for pid in s.pids)


@pytest.mark.parametrize(
    "reference",
    [
        pytest.param(Answer("dog", 0.75, 3.0), id="other-label"),
        pytest.param(Answer("cat", 0.79, 3.0), id="other-probability"),
    ],
)
def test_no_number_is_taken_from_a_server_that_answers_otherwise(tmp_path, reference):
    result = make_result(limits=[], measurements=[])
    plan = make_plan(tmp_path, [QuickServer("wrong")], reference)
    with pytest.raises(ExpectedError, match="would not be comparable"):
        run_bench(plan, result, QuickMeter(), Listener())
    assert result.measurements == []
