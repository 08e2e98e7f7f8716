"""`bench latency`: what a lone request costs, beside the same work alone.

All variants stay open and take turns on the same photographs: the archive's handler in a process of
its own (ALONE), one client against a server that answers at once (LOOPBACK), and against each
server. What decode, transform and forward take alone, no server with the same cores can undercut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from offpath.profiling.core.experiment import Observer, Turn, Variant
from offpath.profiling.core.host import count_cores
from offpath.profiling.core.run import Cell, Figures, Run
from offpath.profiling.experiments.latency_report import (
    ALONE,
    LOOPBACK,
    NAME,
    STAGE,
    TOTAL,
    WORK,
    WORK_STAGES,
)
from offpath.profiling.experiments.on_servers import (
    Bench,
    Choices,
    Subject,
    open_bench,
)
from offpath.profiling.experiments.server_subject import ServerSubject
from offpath.profiling.load.call import Call
from offpath.profiling.load.cold_start import FirstClient
from offpath.profiling.load.known_server import run_known_server
from offpath.profiling.load.plan import Generator, LoadPlan, LoadSample, Watcher
from offpath.profiling.load.target import ServerUnderTest
from offpath.profiling.profilers.handler_process import HandlerProcess
from offpath.profiling.profilers.handlers import (
    HandlerChoice,
    Preparation,
    prepare_handler,
)
from offpath.profiling.servers.torchserve import ARCHIVE
from offpath.profiling.servers.torchserve_variants import make_offpath_direct
from offpath.serving.prediction import parse_server_timing

# Java compiles its hot path by use: one client alone would take minutes to get there.
WARM_UP_CLIENTS = 8
# The first replies on a new connection.
DISCARDED = 8


@dataclass(frozen=True)
class LatencyChoices(Choices):
    """See `offpath bench latency --help`."""

    pause_ms: float = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """See `Choices`."""
        return {**super().settings, "pause_ms": self.pause_ms}


class LoneGenerator:
    """One client that waits for each reply; the warm-up is another generator's, with many."""

    name = "lone client"

    def __init__(self, many: Generator, pause_s: float) -> None:
        self._many, self._pause_s = many, pause_s

    def check(self, seconds: float | None, rate: float | None) -> None:
        """See `Generator`."""
        self._many.check(seconds, rate)

    def run(self, plan: LoadPlan, watcher: Watcher) -> LoadSample:
        """See `Generator`; `plan.requests` end the window.

        Raises:
            ExpectedError: no reply, or another than 200.
        """
        if plan.warm_up_s:
            many, seconds = WARM_UP_CLIENTS, plan.warm_up_s
            load = replace(plan, clients=many, seconds=seconds, requests=None)
            self._many.run(replace(load, warm_up_s=0.0), watcher)
        bodies = cycle([path.read_bytes() for path in plan.paths])
        call = Call(headers=plan.headers)
        with FirstClient(self.name, plan.url, call) as client:
            for body in islice(bodies, DISCARDED):
                client.send(body)
            watcher.on_window()
            begin_s, own_s = time.perf_counter(), time.process_time()
            replies = []
            for body in islice(bodies, plan.requests):
                time.sleep(self._pause_s)
                replies.append(client.send(body))
            elapsed_s = time.perf_counter() - begin_s
        headers = [headers.get("Server-Timing", "") for _, headers in replies]
        return LoadSample(
            elapsed_s,
            {"200": len(replies)},
            [latency_ms for latency_ms, _ in replies],
            time.process_time() - own_s,
            list_stages([parse_server_timing(header) for header in headers]),
        )


def list_stages(timings: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Stages, TOTAL and the sum of WORK_STAGES, a value a request in ms.

    Empty unless every request told the same stages.
    """
    names = list(timings[0]) if timings else []
    if TOTAL not in names or any(list(timing) != names for timing in timings):
        return {}
    return {
        **{name: [timing[name] for timing in timings] for name in names},
        WORK: [sum(t.get(stage, 0.0) for stage in WORK_STAGES) for t in timings],
    }


class Unwatched:
    """A load's watcher where there is nothing to watch."""

    def on_window(self) -> None:
        """See `Watcher`."""

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """See `Watcher`."""


@dataclass
class LoopbackSubject:
    """The client and a server's bodies against one that answers at once: its own target."""

    server: ServerUnderTest
    bench: Bench
    variant = Variant(LOOPBACK)

    def prepare(self, folder: Path) -> None:
        """Nothing to build."""

    @contextmanager
    def opened(self, turn: Turn) -> Iterator[tuple[LoopbackSubject, Figures]]:
        """See `Subject`."""
        with run_known_server() as known:
            self._url = known.url
            yield self, {}

    def measure(self, cell: Cell, turn: Turn) -> Figures:
        """Some requests, one at a time."""
        plan = self.bench.make_plan(self.server, self._url, cell, warm_up_s=0.0)
        sample = self.bench.generator.run(plan, Unwatched())
        return {"elapsed_s": sample.elapsed_s, "latency_ms": sample.latencies_ms}


@dataclass
class AloneSubject:
    """Our archive's handler, one thread, one picture at a time, no server: its own target."""

    bench: Bench
    variant = Variant(ALONE)

    def prepare(self, folder: Path) -> None:
        """Builds the archive."""
        self._folder = folder
        make_offpath_direct(self.bench.model, count_cores()).prepare(folder / "store")

    @contextmanager
    def opened(self, turn: Turn) -> Iterator[tuple[AloneSubject, Figures]]:
        """A process a workload, loaded and warm."""
        archive = str(self._folder / "store" / ARCHIVE)
        choice = HandlerChoice(ALONE, archive, is_archive=True)
        common = Preparation(model="", batch_size=1, threads=1)
        self._processes: dict[str, HandlerProcess] = {}
        with ExitStack() as stack:
            for number, workload in enumerate(self.bench.workloads.values()):
                folder = self._folder / str(number)
                spec = prepare_handler(choice, common, folder)
                process = HandlerProcess(ALONE, spec.environ, folder / "handler.log")
                stack.enter_context(process).load(spec, workload.paths, self._requests)
                self._processes[workload.name] = process
            yield self, {}

    @property
    def _requests(self) -> int:
        return self.bench.choices.windows.requests or 1

    def measure(self, cell: Cell, turn: Turn) -> Figures:
        """Handles the next photographs, one after the other."""
        samples = self._processes[cell.workload].run(self._requests)
        names = sorted({name for sample in samples for name in sample.stages_s})
        stages = list_stages(
            [
                {name: 1e3 * sample.stages_s.get(name, 0.0) for name in names}
                | {TOTAL: 1e3 * sample.total_s}
                for sample in samples
            ]
        )
        elapsed_s = sum(sample.total_s for sample in samples)
        named = {f"{STAGE}.{name}": values for name, values in stages.items()}
        return {"elapsed_s": elapsed_s, **named}


def run_latency(
    choices: LatencyChoices, observer: Observer, save: Callable[[Run], None]
) -> Run:
    """Runs it; arguments and errors: see `open_bench` and `Bench.find_servers`."""
    with open_bench(NAME, choices, observer, save) as bench:
        bench.generator = LoneGenerator(bench.generator, choices.pause_ms / 1e3)
        servers = bench.find_servers()
        subjects: list[Subject] = [AloneSubject(bench)]
        subjects.append(LoopbackSubject(servers[0], bench))
        subjects += [ServerSubject(server.name, server, bench) for server in servers]
        return bench.measure(subjects)
