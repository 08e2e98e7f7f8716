"""One profile of a server: builds and starts it or attaches to it, loads it, makes the account.

With `profile_dir`, a second and shorter load on the same server follows, while its workers run
under cProfile. The account is taken before, when nothing slows the server down.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.handler.process.host_limits import count_cores
from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.workplace import work_folder
from offpath.profiling.experiments.profiled_server import (
    ServedModel,
    WorkerProfiler,
    attach,
    check_alive,
    check_answers,
    start_server,
    wrap_archive,
)
from offpath.profiling.experiments.server_account import (
    find_account_doubts,
    make_account,
    read_counters,
)
from offpath.profiling.load.gpu import GpuSampler
from offpath.profiling.load.plan import Load, find_generator
from offpath.profiling.load.prometheus import Snapshot, read_metrics
from offpath.profiling.load.window import WindowWatcher, name_figures
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.profilers.handlers import OFFPATH, build_handler, check_archive
from offpath.profiling.profilers.profile_figures import ACCOUNT, sum_buckets
from offpath.profiling.profilers.samples import FILES, FUNCTIONS

EXPERIMENT = "profile-server"
# Seconds of load under cProfile: enough batches for shares.
CPROFILE_S = 10.0
CPROFILE_WARM_UP_S = 1.0
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
        profile_dir: folder for the workers' cProfile files; None for no cProfile.
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
    profile_dir: Path | None = None

    @property
    def name(self) -> str:
        """The server's name in reports."""
        if self.url is not None:
            return self.url
        return self.mar.stem if self.mar is not None else self.handler

    @property
    def settings(self) -> dict[str, Any]:
        """The choices that a result keeps."""
        return {
            "duration_s": self.load.seconds,
            "clients": self.clients,
            "warm_up_s": self.load.warm_up_s,
            "seed": self.load.seed,
            "generator": self.load.generator,
        }

    @property
    def facts(self) -> dict[str, Any]:
        """The facts about the served model that a result keeps."""
        if self.url is not None:
            return {"url": self.url}
        if self.mar is not None:
            return {"archive": self.mar.name}
        return {"model": self.model, "threads": 1}


def run_server_profile(
    choices: ServerChoices, observer: Observer, save: Callable[[Run], None]
) -> Run:
    """Profiles a server.

    Args:
        save: called with the account, and again after the load under cProfile.

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
    with failed_folder() as folder, contextlib.ExitStack() as stack:
        profiler = None
        if choices.profile_dir is not None:
            profiler = WorkerProfiler(folder / "cprofile")
            profiler.folder.mkdir()
        target = stack.enter_context(open_target(choices, folder, profiler, observer))
        check_answers(target, workload.paths[0].read_bytes())
        loaded = ServerUnderLoad(choices, target, workload, run, observer)
        loaded.account()
        save(run)
        if profiler is not None and choices.profile_dir is not None:
            loaded.profile_workers(profiler, choices.profile_dir)
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
def open_target(
    choices: ServerChoices,
    folder: Path,
    profiler: WorkerProfiler | None,
    observer: Observer,
) -> Iterator[ServedModel]:
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
    if profiler is not None:
        (folder / "profiled").mkdir()
        archive = wrap_archive(archive, folder / "profiled" / archive.name)
        env = {**env, **profiler.environ}
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


class ServerUnderLoad:
    """The server under load, and the run that receives its figures."""

    def __init__(
        self,
        choices: ServerChoices,
        target: ServedModel,
        workload: Workload,
        run: Run,
        observer: Observer,
    ) -> None:
        self._choices, self._target = choices, target
        self._run, self._observer = run, observer
        self._cell = Cell(workload.name, choices.clients)
        self._generator = find_generator(choices.load.generator)
        self._plan = choices.load.plan(target.predict_url, workload.paths, choices.clients)

    def account(self) -> None:
        """Loads the server for one window and accounts for the clients' mean latency.

        Raises:
            ExpectedError: no reply was good, or the counters cannot be used.
        """
        choices, target = self._choices, self._target
        seconds = f"{choices.load.seconds:g} s"
        self._observer.on_step(f"{choices.name}: warm-up and {seconds} of load")
        watcher = SnapshotWatcher(choices.name, target, self._observer)
        with GpuSampler() as gpu:
            load = self._generator.run(self._plan, watcher)
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
                "no request was answered with 200 in the window; replies by status:"
                f" {load.statuses}"
            )
        counters = read_counters(watcher.snapshots[0], watcher.snapshots[-1], target.model)
        mean_ms = fmean(load.latencies_ms)
        account = make_account(mean_ms, counters)
        parts = {f"{ACCOUNT}.{part}": ms for part, ms in account.items()}
        if counters.mean_batch_size is not None:
            parts["mean_batch_size"] = counters.mean_batch_size
        self._run.add(0, choices.name, self._cell, {**figures, **parts})
        self._run.details = {
            "counters": asdict(counters),
            "in_force": target.in_force,
            "gpu": gpu.samples.to_dict(),
        }
        doubts = find_account_doubts(counters, account, mean_ms, choices.clients)
        self._run.warnings += doubts

    def profile_workers(self, profiler: WorkerProfiler, output: Path) -> None:
        """Loads the server again with cProfile in its workers, and keeps what they wrote."""
        name, run = self._choices.name, self._run
        seconds = min(CPROFILE_S, self._choices.load.seconds or CPROFILE_S)
        self._observer.on_step(f"{name}: {seconds:g} s of load under cProfile")
        plan = replace(self._plan, warm_up_s=CPROFILE_WARM_UP_S, seconds=seconds)
        workers = len(self._target.groups()["workers"])
        profiler.start()
        self._generator.run(plan, WindowWatcher(name, self._target, self._observer))
        written = profiler.stop(workers)
        run.warnings += written.doubts
        functions = written.read_functions()
        run.details[FUNCTIONS] = {name: [asdict(sample) for sample in functions]}
        run.add(0, name, self._cell, sum_buckets(functions))
        output.mkdir(parents=True, exist_ok=True)
        files = [output / f"{name}-worker-{path.name}" for path in written.files]
        for path, kept in zip(written.files, files):
            shutil.copyfile(path, kept)
        run.details[FILES] = {name: [str(kept) for kept in files]}
