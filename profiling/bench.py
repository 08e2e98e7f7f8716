"""Measures servers side by side in interleaved rounds (A B C A B C); stores and prints nothing.

Each server is started afresh for each of its rounds and runs alone: the others' memory and threads
cannot touch its figures, and what differs from start to start shows in the spread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import psutil

from offpath.errors import ExpectedError
from profiling.answers import check_answers
from profiling.bodies import Bodies
from profiling.limits import DECODE, FORWARD, LimitMeter, Rate
from profiling.load import Generator, LoadPlan, LoadSample
from profiling.model_under_test import Answer
from profiling.result import BenchResult, LimitMeasurement, Measurement
from profiling.sampling import sample_cpu_s, sample_rss_bytes, subtract
from profiling.servers import RunningServer, ServerUnderTest
from profiling.workload import Workload

Checks = Mapping[str, Sequence[tuple[bytes, Answer]]]


@dataclass(frozen=True)
class BenchPlan:
    """What to measure.

    Attributes:
        clients: closed-loop clients.
        rounds: how often each server is measured.
        seconds, requests: length of a window, one of the two.
        warm_up_s: load before each window.
        checks: workload name -> photographs and their reference answers.
        bodies: what is sent of a photograph.
    """

    workloads: Sequence[Workload]
    servers: Sequence[ServerUnderTest]
    generator: Generator
    clients: int
    rounds: int
    seconds: float | None
    requests: int | None
    warm_up_s: float
    seed: int
    checks: Checks
    bodies: Bodies


class Observer(Protocol):
    """Told how the run goes on."""

    def on_step(self, text: str) -> None:
        """A step of the run begins."""

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        """Live count inside a window."""

    def on_measured(self) -> None:
        """A server's round, or the limits' round, is in the result: save it now."""


def run_bench(
    plan: BenchPlan, result: BenchResult, meter: LimitMeter, observer: Observer
) -> None:
    """Appends the plan's measurements to `result`, round by round.

    Raises:
        ExpectedError: a server does not start, answers wrongly or dies; finished rounds stay.
    """
    for round_ in range(plan.rounds):
        label = f"round {round_ + 1}/{plan.rounds}"
        observer.on_step(f"{label}: limits of the cores")
        result.limits.extend(measure_limits(plan, meter, round_))
        observer.on_measured()
        for server in plan.servers:
            result.measurements.extend(
                measure_server(plan, server, round_, label, observer)
            )
            observer.on_measured()


def measure_limits(
    plan: BenchPlan, meter: LimitMeter, round_: int
) -> list[LimitMeasurement]:
    """Decode-only for each workload, forward-only once."""
    limits = [
        to_limit(round_, DECODE, workload.name, meter.measure_decode(workload.paths))
        for workload in plan.workloads
    ]
    return [*limits, to_limit(round_, FORWARD, None, meter.measure_forward())]


def to_limit(
    round_: int, kind: str, workload: str | None, rate: Rate
) -> LimitMeasurement:
    """A limit's raw values for the result."""
    return LimitMeasurement(
        round_,
        kind,
        workload,
        rate.images,
        round(rate.elapsed_s, 4),
        round(rate.cpu_s, 3),
    )


def measure_server(
    plan: BenchPlan,
    server: ServerUnderTest,
    round_: int,
    label: str,
    observer: Observer,
) -> list[Measurement]:
    """Starts a server, checks its answers, and measures it on every workload."""
    observer.on_step(f"{label}: {server.name}: start")
    begin = time.perf_counter()
    measured = []
    with server.running() as running:
        ready_s = None
        for workload in plan.workloads:
            observer.on_step(f"{label}: {server.name}: {workload.name}")
            checks = [
                (plan.bodies.make(photograph, server.call), answer)
                for photograph, answer in plan.checks[workload.name]
            ]
            difference = check_answers(
                server.name, running.predict_url, server.call, checks
            )
            ready_s = ready_s or round(time.perf_counter() - begin, 2)
            watcher = WindowWatcher(server.name, running, observer)
            sample = plan.generator.run(
                make_load(plan, server, running, workload), watcher
            )
            measured.append(
                Measurement(
                    round=round_,
                    server=server.name,
                    workload=workload.name,
                    elapsed_s=round(sample.elapsed_s, 4),
                    statuses=sample.statuses,
                    latencies_ms=sample.latencies_ms,
                    cpu_s=watcher.cpu_s(sample),
                    rss_bytes=sample_rss_bytes(running.groups()),
                    ready_s=ready_s,
                    answer_difference=round(difference, 5),
                )
            )
    return measured


def make_load(
    plan: BenchPlan,
    server: ServerUnderTest,
    running: RunningServer,
    workload: Workload,
) -> LoadPlan:
    """The load of one window."""
    return LoadPlan(
        url=running.predict_url,
        paths=plan.bodies.paths(workload, server.call),
        headers=server.call.all_headers,
        clients=plan.clients,
        warm_up_s=plan.warm_up_s,
        seconds=plan.seconds,
        requests=plan.requests,
        seed=plan.seed,
    )


class WindowWatcher:
    """Samples CPU at the window's two ends and notices a server that dies in between."""

    def __init__(self, name: str, running: RunningServer, observer: Observer) -> None:
        self._name, self._running, self._observer = name, running, observer
        self._groups = running.groups()
        self._before: dict[str, float] = {}
        self._busy_before_s = 0.0

    def on_window(self) -> None:
        """The window begins."""
        self._groups = self._running.groups()
        self._before = sample_cpu_s(self._groups)
        self._busy_before_s = machine_busy_s()

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """Passes the count on.

        Raises:
            ExpectedError: the server is gone.
        """
        if not self._running.is_running():
            raise ExpectedError(
                f"server {self._name!r} died under load; its log is {self._running.log_path()}"
            )
        self._observer.on_replies(replies, elapsed_s)

    def cpu_s(self, sample: LoadSample) -> dict[str, float]:
        """CPU seconds inside the window by group; call it as soon as the window is over."""
        busy_s = machine_busy_s() - self._busy_before_s
        groups = subtract(sample_cpu_s(self._groups), self._before)
        groups["generator"] = round(sample.cpu_s, 3)
        groups["other"] = round(max(0.0, busy_s - sum(groups.values())), 3)
        return groups


def machine_busy_s() -> float:
    """CPU seconds of the whole machine, everything but idle, since it started."""
    times = psutil.cpu_times()
    # guest is part of user already.
    return float(
        times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    )
