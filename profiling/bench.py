"""Measures servers side by side in interleaved rounds (A B C A B C); stores and prints nothing.

Each server is started afresh for each of its rounds and runs alone: the others' memory and threads
cannot touch its figures, and what differs from start to start shows in the spread.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

import psutil

from offpath.errors import ExpectedError
from profiling.answers import check_answers
from profiling.bodies import Bodies
from profiling.cold_start import FirstClient
from profiling.gpu import GpuSampler, GpuSamples
from profiling.limits import DECODE, FORWARD, LimitMeter, Rate
from profiling.load import Generator, LoadPlan, LoadSample
from profiling.model_under_test import Answer
from profiling.result import BenchResult, Failure, LimitMeasurement, Measurement, Start
from profiling.sampling import (
    Groups,
    sample_cpu_s,
    sample_pss_bytes,
    sample_rss_bytes,
    subtract,
)
from profiling.servers import BESIDE, RunningServer, ServerUnderTest
from profiling.workload import Workload

Checks = Mapping[str, Sequence[tuple[bytes, Answer]]]


@dataclass(frozen=True)
class Windows:
    """The load of each window; see `profiling.load.LoadPlan`."""

    clients: int
    warm_up_s: float
    seconds: float | None
    requests: int | None
    rate: float | None
    min_replies: int
    seed: int


@dataclass(frozen=True)
class BenchPlan:
    """What to measure.

    Attributes:
        rounds: how often each server is measured.
        windows: the load.
        cold_start: whether to measure what the first request is compared with.
        checks: workload name -> photographs and their reference answers.
        bodies: what is sent of a photograph.
    """

    workloads: Sequence[Workload]
    servers: Sequence[ServerUnderTest]
    generator: Generator
    rounds: int
    windows: Windows
    cold_start: bool
    checks: Checks
    bodies: Bodies


class Observer(Protocol):
    """Told how the run goes on."""

    def on_step(self, text: str) -> None:
        """A step of the run begins."""

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        """Live count inside a window."""

    def on_failure(self, server: str, reason: str) -> None:
        """A server is left out from now on."""

    def on_measured(self) -> None:
        """Something new is in the result: save it now."""


def run_bench(
    plan: BenchPlan, result: BenchResult, meter: LimitMeter, observer: Observer
) -> None:
    """Appends the plan's measurements to `result`, round by round.

    A server that does not start, answers wrongly or dies is left out from then on; its finished
    windows stay, and the reason is in `result.failures`.
    """
    for round_ in range(plan.rounds):
        label = f"round {round_ + 1}/{plan.rounds}"
        observer.on_step(f"{label}: limits of the cores")
        result.limits.extend(measure_limits(plan, meter, round_))
        observer.on_measured()
        for server in plan.servers:
            if any(failure.server == server.name for failure in result.failures):
                continue
            try:
                measure_server(plan, server, round_, label, result, observer)
            except ExpectedError as error:
                result.failures.append(Failure(round_, server.name, str(error)))
                observer.on_failure(server.name, str(error))
            observer.on_measured()


def measure_limits(
    plan: BenchPlan, meter: LimitMeter, round_: int
) -> list[LimitMeasurement]:
    """Decode-only for each workload, forward-only in eager fp32 and with each engine of ours."""
    decoding = [
        to_limit(round_, DECODE, workload.name, meter.measure_decode(workload.paths))
        for workload in plan.workloads
    ]
    owned = [getattr(server, "own_forward", None) for server in plan.servers]
    forwards = {None: None} | {own.label: own for own in owned if own is not None}
    return [
        *decoding,
        *(
            to_limit(round_, FORWARD, None, meter.measure_forward(own), label)
            for label, own in forwards.items()
        ),
    ]


def to_limit(
    round_: int,
    kind: str,
    workload: str | None,
    rate: Rate,
    engine: str | None = None,
) -> LimitMeasurement:
    """A limit's raw values for the result."""
    return LimitMeasurement(
        round_,
        kind,
        workload,
        rate.images,
        round(rate.elapsed_s, 4),
        round(rate.cpu_s, 3),
        engine,
    )


def measure_server(
    plan: BenchPlan,
    server: ServerUnderTest,
    round_: int,
    label: str,
    result: BenchResult,
    observer: Observer,
) -> None:
    """Starts a server, checks its answers, and measures it on every workload.

    Raises:
        ExpectedError: it does not start, answers wrongly or dies.
    """
    observer.on_step(f"{label}: {server.name}: start")
    begin_s = time.perf_counter()
    with server.running() as running:
        # What runs beside it was started first.
        begin_s = getattr(running, "began_s", None) or begin_s
        start = measure_start(plan, server, running, round_, begin_s)
        result.starts.append(start)
        for workload in plan.workloads:
            observer.on_step(f"{label}: {server.name}: {workload.name}")
            checks = make_bodies(plan, server, workload)
            difference = check_answers(
                server.name, running.predict_url, server.call, checks
            )
            watcher = WindowWatcher(server.name, running, observer)
            load = make_load(plan, server, running, workload)
            with GpuSampler() as gpu:
                sample = plan.generator.run(load, watcher)
            watcher.check_running()
            result.measurements.append(
                Measurement(
                    round=round_,
                    server=server.name,
                    workload=workload.name,
                    elapsed_s=round(sample.elapsed_s, 4),
                    statuses=sample.statuses,
                    latencies_ms=sample.latencies_ms,
                    cpu_s=watcher.cpu_s(sample),
                    rss_bytes=sample_rss_bytes(own_groups(running)),
                    pss_bytes=sample_pss_bytes(own_groups(running)),
                    ready_s=start.ready_s,
                    answer_difference=round(difference, 5),
                    gpu=watcher.summarise_gpu(gpu.samples),
                )
            )


def own_groups(running: RunningServer) -> Groups:
    """The server's own processes."""
    groups = running.groups()
    return {name: pids for name, pids in groups.items() if name != BESIDE}


def make_bodies(
    plan: BenchPlan, server: ServerUnderTest, workload: Workload
) -> list[tuple[bytes, Answer]]:
    """The bodies to check a server with, and their answers."""
    return [
        (plan.bodies.make(photograph, server.call), answer)
        for photograph, answer in plan.checks[workload.name]
    ]


def measure_start(
    plan: BenchPlan,
    server: ServerUnderTest,
    running: RunningServer,
    round_: int,
    begin_s: float,
) -> Start:
    """The first request, and the steady ones after it when they were asked for."""
    bodies = [body for body, _ in make_bodies(plan, server, plan.workloads[0])]
    with FirstClient(server.name, running.predict_url, server.call) as client:
        first_ms = client.send_ms(bodies[0])
        ready_s = round(time.perf_counter() - begin_s, 2)
        steady_ms = client.steady_ms(bodies) if plan.cold_start else None
    return Start(round_, server.name, ready_s, first_ms, steady_ms)


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
        **asdict(plan.windows),
    )


class WindowWatcher:
    """Samples CPU at the window's two ends and notices a server that dies in between."""

    def __init__(self, name: str, running: RunningServer, observer: Observer) -> None:
        self._name, self._running, self._observer = name, running, observer
        self._groups = running.groups()
        self._before: dict[str, float] = {}
        self._busy_before_s = 0.0
        self._begin_s = time.monotonic()
        self._opened_s = 0.0

    def on_window(self) -> None:
        """The window begins."""
        self._opened_s = time.monotonic() - self._begin_s
        self._groups = self._running.groups()
        self._before = sample_cpu_s(self._groups)
        self._busy_before_s = machine_busy_s()

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """Passes the count on.

        Raises:
            ExpectedError: the server is gone.
        """
        self.check_running()
        self._observer.on_replies(replies, elapsed_s)

    def check_running(self) -> None:
        """Raises ExpectedError when the server is gone: after a window, its last half second."""
        if not self._running.is_running():
            raise ExpectedError(
                f"server {self._name!r} died under load; its log is {self._running.log_path()}"
            )

    def cpu_s(self, sample: LoadSample) -> dict[str, float]:
        """CPU seconds inside the window by group; call it as soon as the window is over."""
        busy_s = machine_busy_s() - self._busy_before_s
        groups = subtract(sample_cpu_s(self._groups), self._before)
        groups["generator"] = round(sample.cpu_s, 3)
        groups["other"] = round(max(0.0, busy_s - sum(groups.values())), 3)
        return groups

    def summarise_gpu(self, samples: GpuSamples) -> dict[str, float]:
        """The readings inside the window in two figures; empty without a GPU."""
        # The sampler's clock starts with the load, a moment after ours.
        inside = [r for r in samples.readings if r.at_s >= self._opened_s]
        busy = [r.utilisation for r in inside if r.utilisation is not None]
        memory: dict[float, int] = defaultdict(int)
        for reading in inside:
            memory[reading.at_s] += reading.memory_used_bytes
        figures = {"memory_bytes": float(max(memory.values()))} if memory else {}
        return figures | (
            {"utilisation": round(statistics.mean(busy), 4)} if busy else {}
        )


def machine_busy_s() -> float:
    """CPU seconds of the whole machine, everything but idle, since it started."""
    times = psutil.cpu_times()
    # guest is part of user already.
    return float(
        times.user + times.nice + times.system + times.irq + times.softirq + times.steal
    )
