"""How long servers take to start: to be ready, to answer the first request, to add a worker."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import describe_host
from offpath.profiling.core.saved import Saved
from offpath.profiling.core.work_folder import work_folder
from offpath.profiling.experiments.session import (
    describe_server,
    find_runnable,
    prepare_servers,
)
from offpath.profiling.load.bodies import Bodies
from offpath.profiling.load.cold_start import FirstClient
from offpath.profiling.load.model_under_test import load_model, name_model
from offpath.profiling.load.target import RunningServer, ServerUnderTest
from offpath.profiling.load.window import Observer
from offpath.profiling.load.workload import load_workload
from offpath.profiling.servers.registry import make_servers


@dataclass(frozen=True)
class StartChoices:
    """What the user asked for; see `offpath bench start --help`."""

    servers: tuple[str, ...]
    model: str
    workload: str
    rounds: int
    seed: int
    command: str


@dataclass(frozen=True)
class StartMeasurement:
    """One start of one server.

    Attributes:
        ready_s: from starting the server with one worker until that is READY.
        worker_s: from asking for a second worker until it is READY; None where that cannot be.
        first_ms, steady_ms: latency of the first request, median of the 50 after it, one client.
    """

    round: int
    server: str
    ready_s: float
    worker_s: float | None
    first_ms: float
    steady_ms: float


@dataclass
class StartResult:
    """A run."""

    command: str
    started_at: str
    host: dict[str, Any]
    settings: dict[str, Any]
    servers: dict[str, Any] = field(default_factory=dict)
    measurements: list[StartMeasurement] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


START = Saved("offpath-start/1", StartResult, "bench start")


@runtime_checkable
class Scalable(Protocol):
    """A running server whose workers can be added while it runs."""

    def scale(self, workers: int) -> None:
        """Sets the number of workers and waits until they are READY."""


def run_start(
    choices: StartChoices, observer: Observer, save: Callable[[StartResult], None]
) -> StartResult:
    """Starts the servers in turn, round after round; saves after each start."""
    result = StartResult(
        choices.command,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        describe_host(),
        {
            "model": name_model(choices.model),
            "workload": choices.workload,
            "rounds": choices.rounds,
            "seed": choices.seed,
        },
    )
    model = load_model(choices.model)
    asked = make_servers(choices.servers, model, 1)
    workload = load_workload(choices.workload, choices.seed, observer.on_step)
    servers, not_run = find_runnable(asked, observer)
    result.failures.update(not_run)
    with work_folder(lambda: bool(result.failures)) as folder:
        prepared, failed = prepare_servers(servers, folder, observer)
        result.failures.update(failed)
        result.servers.update({one.name: describe_server(one) for one in prepared})
        bodies = Bodies(folder, model.config)
        for round_ in range(choices.rounds):
            for server in prepared:
                if server.name in result.failures:
                    continue
                paths = bodies.paths(workload, server.call)
                observer.on_step(f"round {round_ + 1}/{choices.rounds}: {server.name}")
                try:
                    result.measurements.append(measure_start(server, paths, round_))
                except ExpectedError as error:
                    result.failures[server.name] = str(error)
                    observer.on_failure(server.name, str(error))
                save(result)
    return result


def measure_start(
    server: ServerUnderTest, paths: Sequence[Path], round_: int
) -> StartMeasurement:
    """Starts a server, sends it requests one by one, adds a worker, stops it.

    Raises:
        ExpectedError: it does not start, does not answer or cannot be scaled.
    """
    sent = [path.read_bytes() for path in paths]
    begin_s = time.perf_counter()
    with server.running() as running:
        ready_s = time.perf_counter() - begin_s
        with FirstClient(server.name, running.predict_url, server.call) as client:
            first_ms = client.send_ms(sent[0])
            steady_ms = client.steady_ms(sent)
        worker_s = measure_worker(running)
    return StartMeasurement(
        round_,
        server.name,
        round(ready_s, 2),
        worker_s,
        first_ms,
        steady_ms,
    )


def measure_worker(running: RunningServer) -> float | None:
    """Seconds from asking for a second worker until it is READY; no load meanwhile."""
    if not isinstance(running, Scalable):
        return None
    # A server on its defaults has as many as there are cores.
    running.scale(1)
    begin_s = time.perf_counter()
    running.scale(2)
    return round(time.perf_counter() - begin_s, 2)


@dataclass(frozen=True)
class StartRow:
    """A server's medians over the rounds, and their ratios to the baseline's."""

    server: str
    rounds: int
    ready_s: float
    ready_ratio: float | None
    worker_s: float | None
    worker_range: tuple[float, float] | None
    worker_ratio: float | None
    first_ms: float
    steady_ms: float
    first_ratio: float


def summarise_starts(result: StartResult, baseline: str) -> list[StartRow]:
    """One row per server, in the order of the first round."""
    by_server: dict[str, list[StartMeasurement]] = {}
    for one in result.measurements:
        by_server.setdefault(one.server, []).append(one)
    base = by_server.get(baseline)
    return [
        make_row(name, measured, base if name != baseline else None)
        for name, measured in by_server.items()
    ]


def make_row(
    server: str,
    measured: Sequence[StartMeasurement],
    base: Sequence[StartMeasurement] | None,
) -> StartRow:
    """The first request is divided by its own start's steady ones; the median of those follows."""
    worker = median_worker_s(measured)
    base_worker = median_worker_s(base) if base else None
    ready = statistics.median(one.ready_s for one in measured)
    added = [one.worker_s for one in measured if one.worker_s is not None]
    return StartRow(
        server,
        len(measured),
        ready,
        ready / statistics.median(one.ready_s for one in base) if base else None,
        worker,
        (min(added), max(added)) if added else None,
        worker / base_worker if worker is not None and base_worker else None,
        statistics.median(one.first_ms for one in measured),
        statistics.median(one.steady_ms for one in measured),
        statistics.median(one.first_ms / one.steady_ms for one in measured),
    )


def median_worker_s(measured: Sequence[StartMeasurement]) -> float | None:
    """None where no worker could be added."""
    added = [one.worker_s for one in measured if one.worker_s is not None]
    return statistics.median(added) if added else None
