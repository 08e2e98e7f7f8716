"""Memory of servers with 1, 2, 4 workers, after load: what a worker more costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import describe_host
from offpath.profiling.core.saved import Saved
from offpath.profiling.core.work_folder import work_folder
from offpath.profiling.experiments.session import find_runnable
from offpath.profiling.load.bodies import Bodies
from offpath.profiling.load.gpu import GpuSampler
from offpath.profiling.load.model_under_test import load_model, name_model
from offpath.profiling.load.page_kinds import Pages, sample_pages
from offpath.profiling.load.plan import LoadPlan, find_generator
from offpath.profiling.load.sampling import sample_pss_bytes, sample_rss_bytes
from offpath.profiling.load.target import ServerUnderTest
from offpath.profiling.load.window import Observer, WindowWatcher, own_groups
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.servers.registry import make_servers
from offpath.profiling.servers.torchserve import FORK_HELPERS

CLIENTS = 16
WARM_UP_S = 1.0
# What the workers need besides the front end counts with them.
TEAM = ("workers", FORK_HELPERS)


@dataclass(frozen=True)
class MemoryChoices:
    """What the user asked for; see `offpath bench memory --help`."""

    servers: tuple[str, ...]
    workers: tuple[int, ...]
    workload: str
    model: str
    seconds: float
    seed: int
    command: str


@dataclass(frozen=True)
class MemoryMeasurement:
    """One server with so many workers asked for, at the end of its load.

    Attributes:
        processes: how many of each group there really were.
        rss_bytes, pss_bytes: by group; shared pages count in each process, or in proportion.
        team_pages: of the workers and of what forks them, by kind of page.
        gpu_bytes: of all devices and processes, the highest reading; None without a GPU.
    """

    server: str
    workers: int
    processes: dict[str, int]
    rss_bytes: dict[str, int]
    pss_bytes: dict[str, int]
    team_pages: dict[str, Pages]
    gpu_bytes: int | None

    @property
    def team_pss_bytes(self) -> int:
        """Of the workers and of what forks them."""
        return sum(pages.pss_bytes for pages in self.team_pages.values())

    @property
    def team_unique_bytes(self) -> int:
        """Of their memory, what no other process shares."""
        return sum(pages.unique_bytes for pages in self.team_pages.values())


@dataclass
class MemoryResult:
    """A run."""

    command: str
    started_at: str
    host: dict[str, Any]
    settings: dict[str, Any]
    measurements: list[MemoryMeasurement] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


MEMORY = Saved("offpath-memory/1", MemoryResult, "bench memory")


def run_memory(
    choices: MemoryChoices,
    observer: Observer,
    save: Callable[[MemoryResult], None],
) -> MemoryResult:
    """Starts each server with each number of workers in turn, and loads it for a moment."""
    result = MemoryResult(
        choices.command,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        describe_host(),
        {
            "model": name_model(choices.model),
            "workload": choices.workload,
            "seconds": choices.seconds,
        },
    )
    workload = load_workload(choices.workload, choices.seed, observer.on_step)
    with work_folder(lambda: bool(result.failures)) as folder:
        for workers in choices.workers:
            measure_team(choices, workers, workload, folder, result, observer)
            save(result)
    return result


def measure_team(
    choices: MemoryChoices,
    workers: int,
    workload: Workload,
    folder: Path,
    result: MemoryResult,
    observer: Observer,
) -> None:
    """All servers with one number of workers."""
    model = load_model(choices.model)
    names = [name for name in choices.servers if name not in result.failures]
    servers, not_run = find_runnable(make_servers(names, model, workers), observer)
    result.failures.update(not_run)
    for server in servers:
        own = folder / f"{server.name}-{workers}"
        try:
            server.prepare(own / "server")
            bodies = Bodies(own, model.config).paths(workload, server.call)
            result.measurements.append(
                measure_memory(server, workers, bodies, choices, observer)
            )
        except ExpectedError as error:
            result.failures[f"{server.name}, {workers} workers"] = str(error)
            observer.on_failure(server.name, str(error))


def measure_memory(
    server: ServerUnderTest,
    workers: int,
    paths: Sequence[Path],
    choices: MemoryChoices,
    observer: Observer,
) -> MemoryMeasurement:
    """Starts one server, loads it, samples it."""
    observer.on_step(f"{server.name}: {workers} workers")
    with server.running() as running, GpuSampler() as gpu:
        plan = LoadPlan(
            running.predict_url,
            tuple(paths),
            CLIENTS,
            WARM_UP_S,
            choices.seconds,
            seed=choices.seed,
            headers=server.call.all_headers,
        )
        watcher = WindowWatcher(server.name, running, observer)
        find_generator("locust").run(plan, watcher)
        groups = own_groups(running)
        used = watcher.summarise_gpu(gpu.samples).get("memory_bytes")
        return MemoryMeasurement(
            server.name,
            workers,
            {name: len(pids) for name, pids in groups.items()},
            sample_rss_bytes(groups),
            sample_pss_bytes(groups),
            sample_pages(pid for name in TEAM for pid in groups.get(name, ())),
            None if used is None else int(used),
        )


def share_of_separate(
    measurement: MemoryMeasurement, measurements: Sequence[MemoryMeasurement]
) -> float | None:
    """PSS of a team of N against N times the same server's with one worker.

    Returns:
        None for a team of one, and where one worker alone was not measured.
    """
    count = measurement.processes.get("workers", 0)
    for one in measurements:
        if one.server == measurement.server and one.processes.get("workers") == 1:
            if count > 1 and one.team_pss_bytes:
                return measurement.team_pss_bytes / (count * one.team_pss_bytes)
    return None
