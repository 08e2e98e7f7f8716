"""Measures servers side by side in interleaved rounds (A B C A B C); stores and prints nothing.

Each server is started afresh for each of its rounds and runs alone: the others' memory and threads
cannot touch its figures, and what differs from start to start shows in the spread. Or all run side
by side, idle but the one under load: turns follow within seconds, on cores of nearly one speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TypeVar

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.result import (
    NOISY_CORES,
    BenchResult,
    Failure,
    LimitMeasurement,
    Measurement,
    Start,
)
from offpath.profiling.load.answers import check_answers
from offpath.profiling.load.bodies import Bodies
from offpath.profiling.load.cold_start import FirstClient
from offpath.profiling.load.gpu import GpuSampler
from offpath.profiling.load.limits import DECODE, FORWARD, LimitMeter, Rate
from offpath.profiling.load.model_under_test import Answer
from offpath.profiling.load.plan import Generator, LoadPlan
from offpath.profiling.load.sampling import sample_pss_bytes, sample_rss_bytes
from offpath.profiling.load.target import RunningServer, ServerUnderTest
from offpath.profiling.load.window import Observer, WindowWatcher, own_groups
from offpath.profiling.load.workload import Workload

# Load before a turn of a server that was warmed up in its first.
TURN_WARM_UP_S = 2.0
Measured = TypeVar("Measured")
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
        tries: windows at most, until one is not disturbed by other work on the cores.
        side_by_side: start each server once and keep all running; they take turns.
    """

    workloads: Sequence[Workload]
    servers: Sequence[ServerUnderTest]
    generator: Generator
    rounds: int
    windows: Windows
    cold_start: bool
    checks: Checks
    bodies: Bodies
    tries: int = 1
    side_by_side: bool = False


@dataclass(frozen=True)
class Started:
    """A server that runs, how it started, and by checked workload how far its answers are off."""

    running: RunningServer
    start: Start
    differences: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Where:
    """The round, and who is told."""

    round: int
    label: str
    result: BenchResult
    observer: Observer


def run_bench(
    plan: BenchPlan, result: BenchResult, meter: LimitMeter, observer: Observer
) -> None:
    """Appends the plan's measurements to `result`, round by round.

    A server that does not start, answers wrongly or dies is left out from then on; its finished
    windows stay, and the reason is in `result.failures`.
    """
    with ExitStack() as stack:
        kept: dict[str, Started] = {}
        for round_ in range(plan.rounds):
            label = f"round {round_ + 1}/{plan.rounds}"
            observer.on_step(f"{label}: limits of the cores")
            result.limits.extend(measure_limits(plan, meter, round_, observer))
            observer.on_measured()
            for server in plan.servers:
                if any(failure.server == server.name for failure in result.failures):
                    continue
                where = Where(round_, label, result, observer)
                try:
                    if plan.side_by_side:
                        if server.name not in kept:
                            begun = starting(plan, server, where)
                            kept[server.name] = stack.enter_context(begun)
                        measure_server(plan, server, kept[server.name], where)
                    else:
                        with starting(plan, server, where) as started:
                            measure_server(plan, server, started, where)
                except ExpectedError as error:
                    result.failures.append(Failure(round_, server.name, str(error)))
                    observer.on_failure(server.name, str(error))
                observer.on_measured()


def measure_limits(
    plan: BenchPlan, meter: LimitMeter, round_: int, observer: Observer
) -> list[LimitMeasurement]:
    """Decode-only for each workload, forward-only in eager fp32 and with each engine of ours."""

    def quietly(measure: Callable[[], Rate]) -> Rate:
        return measure_quietly(measure, meter.other_cores, plan.tries, observer)[0]

    decoding = [
        to_limit(
            round_,
            DECODE,
            workload.name,
            quietly(partial(meter.measure_decode, workload.paths)),
        )
        for workload in plan.workloads
    ]
    owned = [getattr(server, "own_forward", None) for server in plan.servers]
    forwards = {None: None} | {own.label: own for own in owned if own is not None}
    return [
        *decoding,
        *(
            to_limit(
                round_,
                FORWARD,
                None,
                quietly(partial(meter.measure_forward, own)),
                label,
            )
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


@contextmanager
def starting(
    plan: BenchPlan, server: ServerUnderTest, where: Where
) -> Iterator[Started]:
    """Starts a server and sends the first request.

    Raises:
        ExpectedError: it does not start, or does not answer.
    """
    where.observer.on_step(f"{where.label}: {server.name}: start")
    begin_s = time.perf_counter()
    with server.running() as running:
        # What runs beside it was started first.
        begin_s = getattr(running, "began_s", None) or begin_s
        start = measure_start(plan, server, running, where.round, begin_s)
        where.result.starts.append(start)
        yield Started(running, start)


def measure_server(
    plan: BenchPlan, server: ServerUnderTest, started: Started, where: Where
) -> None:
    """Measures a running server on every workload, once its answers there were checked.

    Raises:
        ExpectedError: it answers wrongly, or dies.
    """
    running, observer = started.running, where.observer
    for workload in plan.workloads:
        observer.on_step(f"{where.label}: {server.name}: {workload.name}")
        if workload.name not in started.differences:
            started.differences[workload.name] = check_answers(
                server.name,
                running.predict_url,
                server.call,
                make_bodies(plan, server, workload),
            )
        load = make_load(plan, server, running, workload)
        if plan.side_by_side and where.round > 0:
            # It has had all its warm-up, and idles since its last turn.
            load = replace(load, warm_up_s=min(load.warm_up_s, TURN_WARM_UP_S))

        def measure() -> Measurement:
            watcher = WindowWatcher(server.name, running, observer)
            with GpuSampler() as gpu:
                sample = plan.generator.run(load, watcher)
            watcher.check_running()
            return Measurement(
                round=where.round,
                server=server.name,
                workload=workload.name,
                elapsed_s=round(sample.elapsed_s, 4),
                statuses=sample.statuses,
                latencies_ms=sample.latencies_ms,
                cpu_s=watcher.cpu_s(sample),
                rss_bytes=sample_rss_bytes(own_groups(running)),
                pss_bytes=sample_pss_bytes(own_groups(running)),
                ready_s=started.start.ready_s,
                answer_difference=round(started.differences[workload.name], 5),
                gpu=watcher.summarise_gpu(gpu.samples),
            )

        measured, tries = measure_quietly(
            measure, lambda one: one.other_cores, plan.tries, observer
        )
        where.result.measurements.append(replace(measured, tries=tries))


def measure_quietly(
    measure: Callable[[], Measured],
    count_other_cores: Callable[[Measured], float],
    tries: int,
    observer: Observer,
) -> tuple[Measured, int]:
    """Measures until nothing else is busy on the cores.

    Returns:
        the quietest of all tries (chosen by what others did, never by its own figures), and how
        many there were.
    """
    measured: list[tuple[float, Measured]] = []
    while True:
        one = measure()
        other = count_other_cores(one)
        measured.append((other, one))
        if other <= NOISY_CORES or len(measured) >= tries:
            return min(measured, key=lambda pair: pair[0])[1], len(measured)
        observer.on_step(f"{other:.1f} cores were busy with something else: again")


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
