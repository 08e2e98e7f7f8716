"""One profile of a server from choices to run: builds, starts or attaches, loads, accounts.

With `profile_dir` a second, shorter load follows on the same server while its workers run under
cProfile: the account is of a server that nobody slows down.
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
from offpath.profiling.experiments.server_account import (
    SnapshotWatcher,
    find_doubts,
    make_account,
    read_counters,
)
from offpath.profiling.experiments.server_target import (
    ServedModel,
    attach,
    check_alive,
    check_answers,
    start_server,
)
from offpath.profiling.experiments.worker_profiles import (
    WorkerProfiler,
    read_functions,
    wrap_archive,
)
from offpath.profiling.load.gpu import GpuSampler
from offpath.profiling.load.plan import Load, find_generator
from offpath.profiling.load.window import WindowWatcher, name_figures
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.profilers.handlers import OFFPATH, build_handler, check_archive
from offpath.profiling.profilers.profile_figures import ACCOUNT, sum_buckets
from offpath.profiling.profilers.samples import FILES, FUNCTIONS

EXPERIMENT = "profile-server"
# Of load under cProfile: enough batches for shares.
CPROFILE_S = 10.0
CPROFILE_WARM_UP_S = 1.0
# Of a window, what cannot be told of a server that somebody else runs.
NOT_OURS = ("cpu_s.", "other_cores")


@dataclass(frozen=True)
class ServerChoices:
    """What the user asked for; see `offpath profile server --help`.

    Attributes:
        url: of a running server; None starts one.
        mar: an archive to serve; None builds `handler` with `model`.
        profile_dir: where the workers' cProfile files go; None for no cProfile.
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
        """Of what is served, in reports."""
        if self.url is not None:
            return self.url
        return self.mar.stem if self.mar is not None else self.handler

    @property
    def settings(self) -> dict[str, Any]:
        """What a result says was chosen."""
        return {
            "duration_s": self.load.seconds,
            "clients": self.clients,
            "warm_up_s": self.load.warm_up_s,
            "seed": self.load.seed,
            "generator": self.load.generator,
        }

    @property
    def facts(self) -> dict[str, Any]:
        """What is served."""
        if self.url is not None:
            return {"url": self.url}
        if self.mar is not None:
            return {"archive": self.mar.name}
        return {"model": self.model, "threads": 1}


def run_server_profile(
    choices: ServerChoices, observer: Observer, save: Callable[[Run], None]
) -> Run:
    """Runs it.

    Args:
        save: called with the account, and again after the load under cProfile.

    Raises:
        ExpectedError: wrong choices, a server that is not there, does not start, does not answer
            or dies; no metrics.
    """
    if choices.mar is not None:
        check_archive(choices.mar)
    if choices.url is not None:
        # Before photographs are made, which takes half a minute at first.
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
        profiler = prepare_profiler(choices, folder)
        target = stack.enter_context(open_target(choices, folder, profiler, observer))
        check_answers(target, workload.paths[0].read_bytes())
        loaded = LoadedServer(choices, target, workload, run, observer)
        loaded.account()
        save(run)
        if profiler is not None and choices.profile_dir is not None:
            loaded.profile_workers(profiler, choices.profile_dir)
            save(run)
    return run


@contextlib.contextmanager
def failed_folder() -> Iterator[Path]:
    """A temporary folder that stays when something was wrong: messages name the logs in it."""
    failed = False
    with work_folder(lambda: failed) as folder:
        try:
            yield folder
        except ExpectedError:
            failed = True
            raise


def prepare_profiler(choices: ServerChoices, folder: Path) -> WorkerProfiler | None:
    """The workers' control folder, None without cProfile."""
    if choices.profile_dir is None:
        return None
    control = folder / "cprofile"
    control.mkdir()
    return WorkerProfiler(control)


@contextlib.contextmanager
def open_target(
    choices: ServerChoices,
    folder: Path,
    profiler: WorkerProfiler | None,
    observer: Observer,
) -> Iterator[ServedModel]:
    """The server to load; its own is stopped at the end, leaving no process."""
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
        # One thread a worker, as there is one worker a core.
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


class LoadedServer:
    """The server under load, and the run that takes what was measured of it."""

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
        self._plan = choices.load.plan(
            target.predict_url, workload.paths, choices.clients
        )

    def account(self) -> None:
        """One window of load, and where the clients' mean latency went in it.

        Raises:
            ExpectedError: no good reply, or counters that do not serve.
        """
        choices, target = self._choices, self._target
        seconds = f"{choices.load.seconds:g} s"
        self._observer.on_step(f"{choices.name}: warm-up and {seconds} of load")
        watcher = SnapshotWatcher(choices.name, target, self._observer)
        with GpuSampler() as gpu:
            load = self._generator.run(self._plan, watcher)
        figures = name_figures(load, watcher.cpu_s(load))
        if not target.groups():
            # The server's own CPU time would stand under what is nobody's.
            figures = {n: v for n, v in figures.items() if not n.startswith(NOT_OURS)}
        if len(watcher.snapshots) < 2:
            raise ExpectedError(
                f"the window of {seconds} was too short for two readings of the metrics: take a"
                " longer --duration"
            )
        if not load.latencies_ms:
            raise ExpectedError(
                "no request was answered with 200 in the window; replies by status:"
                f" {load.statuses}"
            )
        counters = read_counters(
            watcher.snapshots[0], watcher.snapshots[-1], target.model
        )
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
        doubts = find_doubts(counters, account, mean_ms, choices.clients)
        self._run.warnings += doubts

    def profile_workers(self, profiler: WorkerProfiler, output: Path) -> None:
        """A second load with cProfile in the workers: their functions, and the files they wrote."""
        name, run = self._choices.name, self._run
        seconds = min(CPROFILE_S, self._choices.load.seconds or CPROFILE_S)
        self._observer.on_step(f"{name}: {seconds:g} s of load under cProfile")
        plan = replace(self._plan, warm_up_s=CPROFILE_WARM_UP_S, seconds=seconds)
        workers = len(self._target.groups()["workers"])
        profiler.start()
        self._generator.run(plan, WindowWatcher(name, self._target, self._observer))
        written = profiler.stop(workers)
        run.warnings += written.doubts
        functions = read_functions(written)
        run.details[FUNCTIONS] = {name: [asdict(sample) for sample in functions]}
        run.add(0, name, self._cell, sum_buckets(functions))
        output.mkdir(parents=True, exist_ok=True)
        files = [output / f"{name}-worker-{path.name}" for path in written.files]
        for path, kept in zip(written.files, files):
            shutil.copyfile(path, kept)
        run.details[FILES] = {name: [str(kept) for kept in files]}
