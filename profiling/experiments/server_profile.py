"""One profile of a server: builds and starts it or attaches to it, loads it, makes the account."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.handler.process.host_limits import count_cores
from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.gpu import GpuSampler
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.workplace import work_folder
from offpath.profiling.experiments.profiled_server import (
    ServedModel,
    attach,
    check_alive,
    check_answers,
    start_server,
)
from offpath.profiling.experiments.server_account import (
    find_account_doubts,
    make_account,
    read_counters,
)
from offpath.profiling.load.plan import Load, find_generator
from offpath.profiling.load.prometheus import Snapshot, read_metrics
from offpath.profiling.load.window import WindowWatcher, name_figures
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.profilers.handlers import OFFPATH, build_handler, check_archive
from offpath.profiling.profilers.profile_figures import ACCOUNT

EXPERIMENT = "profile-server"
# Java takes a few milliseconds to make the metrics page.
SNAPSHOT_EVERY_S = 1.0
# Figures of a window that cannot be measured for a server that somebody else runs.
NOT_OURS = ("cpu_s.", "other_cores")


@dataclass(frozen=True)
class ServerChoices:
    """The choices for a profile of a server.

    Attributes:
        url: address of a running server; None starts one.
        mar: an archive to serve; None builds `handler` with `model`.
    """

    load: Load
    clients: int
    images: str
    command: str
    url: str | None = None
    metrics_url: str | None = None
    management_url: str | None = None
    served_as: str | None = None
    mar: Path | None = None
    model: str = "near-free"
    handler: str = OFFPATH

    @property
    def name(self) -> str:
        if self.url is not None:
            return self.url
        return self.mar.stem if self.mar is not None else self.handler

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "duration_s": self.load.seconds,
            "clients": self.clients,
            "warm_up_s": self.load.warm_up_s,
            "seed": self.load.seed,
            "generator": self.load.generator,
        }

    @property
    def facts(self) -> dict[str, Any]:
        if self.url is not None:
            return {"url": self.url}
        if self.mar is not None:
            return {"archive": self.mar.name}
        return {"model": self.model, "threads": 1}


def run_server_profile(
    choices: ServerChoices, observer: Observer, save: Callable[[Run], None]
) -> Run:
    """Profiles a server; calls `save` with the account.

    Raises:
        ExpectedError: the choices are wrong, or the server cannot be reached, does not start, does
            not answer, dies or has no metrics.
    """
    if choices.mar is not None:
        check_archive(choices.mar)
    if choices.url is not None:
        # Before images are made, which takes half a minute the first time.
        check_alive(choices.url.rstrip("/"))
    workload = load_workload(choices.images, choices.load.seed, observer.on_step)
    run = Run(
        EXPERIMENT,
        choices.command,
        choices.settings,
        variants={choices.name: choices.facts},
        workloads={workload.name: workload.facts},
    )
    with failed_folder() as folder, open_target(choices, folder, observer) as target:
        check_answers(target, workload.paths[0].read_bytes())
        add_account(run, choices, target, workload, observer)
        save(run)
    return run


@contextlib.contextmanager
def failed_folder() -> Iterator[Path]:
    """Makes a temporary folder that is kept after an error, whose message names logs in it."""
    failed = False
    with work_folder(lambda: failed) as folder:
        try:
            yield folder
        except ExpectedError:
            failed = True
            raise


@contextlib.contextmanager
def open_target(choices: ServerChoices, folder: Path, observer: Observer) -> Iterator[ServedModel]:
    """Yields the server to load. A server of our own is stopped at the end."""
    if choices.url is not None:
        yield attach(
            choices.url,
            choices.metrics_url,
            choices.management_url,
            choices.served_as,
        )
        return
    observer.on_step(f"{choices.name}: build")
    store = folder / "store"
    store.mkdir()
    if choices.mar is not None:
        archive, env = choices.mar.resolve(), {}
    else:
        archive = build_handler(choices.handler, choices.model, store, count_cores())
        # One thread per worker, because there is one worker per core.
        env = {"OFFPATH_PREDICTION_LOG": "off"}
        if choices.handler != OFFPATH:
            env = {"OMP_NUM_THREADS": "1"}
    observer.on_step(f"{choices.name}: start")
    with start_server(archive, folder, env) as server:
        yield server


class SnapshotWatcher(WindowWatcher):
    """A watcher that reads /metrics when the window begins and about once per second inside it.

    The last reading before the window ends is the second snapshot. All clients are busy at both.
    """

    def __init__(self, name: str, target: ServedModel, observer: Observer) -> None:
        super().__init__(name, target, observer)
        self._metrics_url = target.metrics_url
        self._last_s = 0.0
        self.snapshots: list[Snapshot] = []

    def on_window(self) -> None:
        self.snapshots = [read_metrics(self._metrics_url)]
        super().on_window()

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        super().on_progress(replies, elapsed_s)
        if elapsed_s - self._last_s >= SNAPSHOT_EVERY_S:
            self._last_s = elapsed_s
            self.snapshots.append(read_metrics(self._metrics_url))


def add_account(
    run: Run,
    choices: ServerChoices,
    target: ServedModel,
    workload: Workload,
    observer: Observer,
) -> None:
    """Loads the server for one window and accounts for the clients' mean latency.

    Raises:
        ExpectedError: no reply was good, or the counters cannot be used.
    """
    seconds = f"{choices.load.seconds:g} s"
    observer.on_step(f"{choices.name}: warm-up and {seconds} of load")
    plan = choices.load.plan(target.predict_url, workload.paths, choices.clients)
    watcher = SnapshotWatcher(choices.name, target, observer)
    with GpuSampler() as gpu:
        load = find_generator(choices.load.generator).run(plan, watcher)
    figures = name_figures(load, watcher.cpu_s(load))
    if not target.groups():
        # The CPU time of somebody else's server would count as that of other processes.
        figures = {n: v for n, v in figures.items() if not n.startswith(NOT_OURS)}
    if len(watcher.snapshots) < 2:
        raise ExpectedError(
            f"the window of {seconds} was too short for two readings of the metrics: measure"
            " for longer"
        )
    if not load.latencies_ms:
        raise ExpectedError(
            f"no request was answered with 200 in the window; replies by status: {load.statuses}"
        )
    counters = read_counters(watcher.snapshots[0], watcher.snapshots[-1], target.model)
    mean_ms = fmean(load.latencies_ms)
    account = make_account(mean_ms, counters)
    parts = {f"{ACCOUNT}.{part}": ms for part, ms in account.items()}
    if counters.mean_batch_size is not None:
        parts["mean_batch_size"] = counters.mean_batch_size
    run.add(0, choices.name, Cell(workload.name, choices.clients), {**figures, **parts})
    run.details = {
        "counters": asdict(counters),
        "in_force": target.in_force,
        "gpu": gpu.samples.to_dict(),
    }
    run.warnings += find_account_doubts(counters, account, mean_ms, choices.clients)
