"""A server under load as a variant of an experiment: its start, its windows, what is probed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from offpath.profiling.core.experiment import Turn, Variant
from offpath.profiling.core.limits import CONTENT
from offpath.profiling.core.run import Cell, Figures
from offpath.profiling.core.runner import START
from offpath.profiling.experiments.on_servers import TURN_WARM_UP_S, Bench
from offpath.profiling.load.answers import check_answers
from offpath.profiling.load.cold_start import FirstClient
from offpath.profiling.load.page_kinds import sample_pages
from offpath.profiling.load.target import RunningServer, ServerUnderTest
from offpath.profiling.load.window import measure_load, own_groups
from offpath.profiling.servers.torchserve import FORK_HELPERS

# What further is measured of a server: how it starts and scales, what its memory is made of.
PROBES = PROBE_START, PROBE_MEMORY = "start", "memory"
# What the workers need besides the front end counts with them.
TEAM = ("workers", FORK_HELPERS)


@runtime_checkable
class Scalable(Protocol):
    """A running server whose workers can be added while it runs."""

    def scale(self, workers: int) -> None:
        """Sets the number of workers and waits until they are READY."""


class ServerTarget:
    """A running server; its answers are checked before its first window on each workload."""

    def __init__(
        self,
        server: ServerUnderTest,
        running: RunningServer,
        bench: Bench,
        probes: Sequence[str] = (),
    ) -> None:
        self.server, self.running, self.bench = server, running, bench
        self._probes = probes
        self._differences: dict[str, float] = {}

    def measure(self, cell: Cell, turn: Turn) -> Figures:
        """One window of load; where there is no workload, the probe of a further worker."""
        if cell == START:
            return measure_worker(self.running)
        warm_up_s = self.bench.choices.windows.warm_up_s
        if cell.workload in self._differences:
            warm_up_s = min(warm_up_s, TURN_WARM_UP_S)
        difference = self.check(cell.workload)
        url = self.running.predict_url
        plan = self.bench.make_plan(self.server, url, cell, warm_up_s)
        figures = measure_load(
            turn.variant.name, self.running, plan, self.bench.generator, turn.observer
        )
        return {
            **figures,
            "answer_difference": round(difference, 5),
            **(measure_memory(self.running) if PROBE_MEMORY in self._probes else {}),
        }

    def check(self, workload: str) -> float:
        """How far its probabilities are off, at most.

        Raises:
            ExpectedError: it answers wrongly.
        """
        if workload not in self._differences:
            self._differences[workload] = check_answers(
                self.server.name,
                self.running.predict_url,
                self.server.call,
                self.bench.make_checks(self.server, workload),
            )
        return self._differences[workload]


@dataclass(frozen=True)
class ServerSubject:
    """A server under load.

    Attributes:
        name: of the variant; the server's own where that tells it from the others.
        facts: further ones.
        probes: PROBE_START, PROBE_MEMORY.
        cells: see `Variant`.
        measures_start: whether the first request is timed.
    """

    name: str
    server: ServerUnderTest
    bench: Bench
    facts: Mapping[str, Any] = field(default_factory=dict)
    probes: tuple[str, ...] = ()
    cells: tuple[Cell, ...] | None = None
    measures_start: bool = True

    @property
    def variant(self) -> Variant:
        """How it is set up and what its clients send."""
        facts = {**self.server.settings, CONTENT: self.server.call.content}
        return Variant(self.name, {**facts, **self.facts}, self.cells)

    def prepare(self, folder: Path) -> None:
        """See `Experiment`."""
        self.server.prepare(folder)

    @contextmanager
    def opened(self, turn: Turn) -> Iterator[tuple[ServerTarget, Figures]]:
        """Starts it and sends the first request."""
        begin_s = time.perf_counter()
        with self.server.running() as running:
            # What runs beside it was started first.
            begin_s = getattr(running, "began_s", None) or begin_s
            target = ServerTarget(self.server, running, self.bench, self.probes)
            yield target, self._measure_start(running, begin_s)

    def _measure_start(self, running: RunningServer, begin_s: float) -> Figures:
        if not self.measures_start:
            return {}
        workload = next(iter(self.bench.workloads))
        bodies = [body for body, _ in self.bench.make_checks(self.server, workload)]
        with FirstClient(self.name, running.predict_url, self.server.call) as client:
            first_ms = client.send_ms(bodies[0])
            figures = {
                "ready_s": round(time.perf_counter() - begin_s, 2),
                "first_ms": first_ms,
            }
            if PROBE_START in self.probes:
                figures["steady_ms"] = client.steady_ms(bodies)
        return figures


def measure_worker(running: RunningServer) -> Figures:
    """Seconds from asking for a second worker until it is READY; no load meanwhile."""
    if not isinstance(running, Scalable):
        return {}
    count = len(running.groups()["workers"])
    running.scale(1)
    begin_s = time.perf_counter()
    running.scale(2)
    worker_s = round(time.perf_counter() - begin_s, 2)
    running.scale(count)
    return {"worker_s": worker_s}


def measure_memory(running: RunningServer) -> Figures:
    """The workers' memory, and that of what forks them, by kind of page."""
    groups = own_groups(running)
    pages = sample_pages(pid for name in TEAM for pid in groups.get(name, ()))
    return {
        **{f"processes.{name}": float(len(pids)) for name, pids in groups.items()},
        **{f"team_pss_bytes.{kind}": one.pss_bytes for kind, one in pages.items()},
        **{f"team_unique_bytes.{k}": one.unique_bytes for k, one in pages.items()},
    }
