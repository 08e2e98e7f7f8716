"""Minutes of good and bad items against our server: statuses, restarts, the workers' memory."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import count_cores, describe_host
from offpath.profiling.core.saved import Saved
from offpath.profiling.load.bad_items import make_bad_items
from offpath.profiling.load.model_under_test import load_model
from offpath.profiling.load.plan import NO_REPLY, LoadPlan, LoadSample, find_generator
from offpath.profiling.load.sampling import Ticker, process_rss_bytes
from offpath.profiling.load.target import RunningServer
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.servers.torchserve import make_offpath

SAMPLE_EVERY_S = 10.0
# The first minute fills caches and pools.
SETTLED_AFTER_S = 60.0
WARM_UP_S = 3.0


@dataclass(frozen=True)
class SoakChoices:
    """What the user asked for; see `offpath bench soak --help`."""

    minutes: float
    workload: str
    model: str
    clients: int
    seed: int
    command: str


@dataclass(frozen=True)
class MemorySample:
    """Resident memory of each worker, by process id, `at_s` seconds into the load."""

    at_s: float
    worker_rss_bytes: dict[int, int]

    @property
    def total_bytes(self) -> int:
        """Of all workers."""
        return sum(self.worker_rss_bytes.values())


@dataclass
class SoakResult:
    """What the soak saw; `problems` is empty when all was well."""

    choices: SoakChoices
    started_at: str
    host: dict[str, Any]
    bad_items: list[str]
    good_items: int
    statuses: dict[str, int] = field(default_factory=dict)
    elapsed_s: float = 0.0
    memory: list[MemorySample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


SOAK = Saved("offpath-soak/1", SoakResult, "bench soak")


class StepObserver(Protocol):
    """Told how the soak goes on."""

    def on_step(self, text: str) -> None:
        """A step begins."""

    def on_replies(self, replies: int, elapsed_s: float) -> None:
        """Live count."""


class SoakWatcher:
    """Samples the workers' memory, whose process ids also tell of a restart."""

    def __init__(self, running: RunningServer, observer: StepObserver) -> None:
        self._running, self._observer = running, observer
        self.memory: list[MemorySample] = []

    def sample(self, at_s: float) -> None:
        """Takes one sample."""
        pids = self._running.groups()["workers"]
        rss = {pid: process_rss_bytes(pid) for pid in pids}
        self.memory.append(MemorySample(round(at_s, 1), rss))

    def on_window(self) -> None:
        """The load begins to count."""
        self.sample(0.0)

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """Passes the count on; ends the soak when the server is gone."""
        if not self._running.is_running():
            raise ExpectedError(
                f"the server died; its log is {self._running.log_path()}"
            )
        self._observer.on_replies(replies, elapsed_s)


def run_soak(choices: SoakChoices, observer: StepObserver) -> SoakResult:
    """Runs the soak and judges it."""
    model = load_model(choices.model)
    workload = load_workload(choices.workload, choices.seed, observer.on_step)
    bad_items = make_bad_items(workload.paths[0].read_bytes(), choices.seed)
    result = SoakResult(
        choices,
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        describe_host(),
        sorted(bad_items),
        len(workload.paths),
    )
    server = make_offpath(model, count_cores())
    with tempfile.TemporaryDirectory(prefix="offpath-soak-") as folder:
        observer.on_step("build and start")
        server.prepare(Path(folder) / "store")
        paths = mix_items(workload, bad_items, Path(folder))
        with server.running() as running:
            observer.on_step(f"{choices.minutes:g} minutes of load")
            watcher = SoakWatcher(running, observer)
            sample = run_load(choices, running, paths, watcher)
    result.statuses, result.elapsed_s = sample.statuses, sample.elapsed_s
    result.memory = watcher.memory
    result.problems = find_problems(result)
    return result


def mix_items(
    workload: Workload, bad_items: dict[str, bytes], folder: Path
) -> tuple[Path, ...]:
    """The good items and the bad ones, as files; the generator shuffles them."""
    bad = []
    for name, body in bad_items.items():
        path = folder / name
        path.write_bytes(body)
        bad.append(path)
    return (*workload.paths, *bad)


def run_load(
    choices: SoakChoices,
    running: RunningServer,
    paths: tuple[Path, ...],
    watcher: SoakWatcher,
) -> LoadSample:
    """The load, with a sample of memory every 10 s."""
    plan = LoadPlan(
        running.predict_url,
        paths,
        choices.clients,
        WARM_UP_S,
        60 * choices.minutes,
        seed=choices.seed,
    )
    with Ticker(SAMPLE_EVERY_S, watcher.sample):
        return find_generator("locust").run(plan, watcher)


def find_problems(result: SoakResult) -> list[str]:
    """Statuses, restarts and counts that must not be."""
    problems = [
        f"{count} replies with status {status}"
        for status, count in result.statuses.items()
        if status == NO_REPLY or status.startswith("5")
    ]
    teams = {tuple(sorted(sample.worker_rss_bytes)) for sample in result.memory}
    if len(teams) > 1:
        problems.append(f"workers restarted: their process ids were {sorted(teams)}")
    return problems


def memory_slope_bytes_per_min(memory: list[MemorySample]) -> float:
    """Least-squares slope of the workers' memory after the first minute."""
    settled = [sample for sample in memory if sample.at_s >= SETTLED_AFTER_S]
    if len(settled) < 2:
        return float("nan")
    times = [sample.at_s / 60 for sample in settled]
    totals = [sample.total_bytes for sample in settled]
    mean_t, mean_b = sum(times) / len(times), sum(totals) / len(totals)
    covariance = sum((t - mean_t) * (b - mean_b) for t, b in zip(times, totals))
    return covariance / sum((t - mean_t) ** 2 for t in times)
