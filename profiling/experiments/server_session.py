"""One profile of a server from choices to result: builds, starts or attaches, loads, accounts.

With `profile_dir` a second, shorter load follows on the same server while its workers run under
cProfile: the account is of a server that nobody slows down.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.host import count_cores, describe_host
from offpath.profiling.experiments.server_profile import make_server_profile
from offpath.profiling.experiments.server_target import (
    Target,
    attach,
    check_alive,
    check_answers,
    start_server,
)
from offpath.profiling.in_process.handlers import NAIVE, OFFPATH, check_archive
from offpath.profiling.in_process.profile_result import HandlerProfile, ProfileResult
from offpath.profiling.in_process.profiled_archive import (
    WorkerProfiler,
    read_functions,
    wrap_archive,
)
from offpath.profiling.load.gpu import GpuSampler
from offpath.profiling.load.plan import LoadPlan, LoadSample, find_generator
from offpath.profiling.load.prometheus import Snapshot, read_metrics
from offpath.profiling.load.window import Observer, WindowWatcher
from offpath.profiling.load.workload import Workload, load_workload

KIND = "server"
# Reading the page costs Java a few milliseconds.
SNAPSHOT_EVERY_S = 1.0
# Of load under cProfile: enough batches for shares.
CPROFILE_S = 10.0
CPROFILE_WARM_UP_S = 1.0


@dataclass(frozen=True)
class ServerChoices:
    """What the user asked for; see `offpath profile server --help`.

    Attributes:
        url: of a running server; None starts one.
        mar: an archive to serve; None builds `handler` with `model`.
        profile_dir: where the workers' cProfile files go; None for no cProfile.
    """

    duration_s: float
    clients: int
    warm_up_s: float
    images: str
    seed: int
    generator: str
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
        """Of the handler in reports."""
        if self.url is not None:
            return self.url
        return self.mar.stem if self.mar is not None else self.handler

    @property
    def settings(self) -> dict[str, Any]:
        """What must be alike for two results to be compared."""
        kept = ("duration_s", "clients", "warm_up_s", "seed", "generator")
        return {name: getattr(self, name) for name in kept}

    @property
    def handler_settings(self) -> dict[str, Any]:
        """What was served."""
        if self.url is not None:
            return {"url": self.url}
        if self.mar is not None:
            return {"archive": self.mar.name}
        return {"model": self.model, "threads": 1}


class SnapshotWatcher:
    """Reads /metrics at the window's beginning and about once a second inside it.

    The last reading before the window ends is the second snapshot: at both, every client is busy.
    """

    def __init__(self, target: Target, observer: Observer) -> None:
        self._target = target
        self._window = WindowWatcher(target.model, target, observer)
        self._last_s = 0.0
        self.snapshots: list[Snapshot] = []

    def on_window(self) -> None:
        """The window begins."""
        self.snapshots = [read_metrics(self._target.metrics_url)]
        self._window.on_window()

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """Passes the count on; raises ExpectedError when the server is gone."""
        self._window.on_progress(replies, elapsed_s)
        if elapsed_s - self._last_s >= SNAPSHOT_EVERY_S:
            self._last_s = elapsed_s
            self.snapshots.append(read_metrics(self._target.metrics_url))

    def cpu_ms_per_request(self, sample: LoadSample) -> dict[str, float]:
        """By process group; empty where the server is not ours."""
        cpu_s = self._window.cpu_s(sample)
        if not self._target.groups() or not sample.ok:
            return {}
        return {name: 1e3 * seconds / sample.ok for name, seconds in cpu_s.items()}


def run_server_profile(choices: ServerChoices, observer: Observer) -> ProfileResult:
    """Runs it.

    Raises:
        ExpectedError: wrong choices, a server that is not there, does not start, does not answer
            or dies; no metrics.
    """
    if choices.mar is not None:
        check_archive(choices.mar)
    if choices.url is not None:
        # Before photographs are made, which takes half a minute at first.
        check_alive(choices.url.rstrip("/"))
    workload = load_workload(choices.images, choices.seed, observer.on_step)
    result = begin_result(choices, workload)
    with work_folder() as folder:
        profiler = prepare_profiler(choices, folder)
        with open_target(choices, folder, profiler, observer) as target:
            check_answers(target, workload.paths[0].read_bytes())
            profile = HandlerProfile(choices.name, choices.handler_settings)
            profile.server = measure(choices, target, workload, observer)
            if profiler is not None:
                profile_workers(choices, target, workload, profiler, profile, observer)
    result.handlers.append(profile)
    return result


@contextmanager
def work_folder() -> Iterator[Path]:
    """A temporary folder; when something was wrong its `logs` stay, which the message names."""
    folder = Path(tempfile.mkdtemp(prefix="offpath-profile-"))
    is_failed = False
    try:
        yield folder
    except ExpectedError:
        is_failed = True
        raise
    finally:
        logs = folder / "logs"
        for entry in folder.iterdir():
            if entry.is_file():
                entry.unlink()
            elif not (is_failed and entry == logs):
                shutil.rmtree(entry, ignore_errors=True)
        if not (is_failed and logs.exists()):
            shutil.rmtree(folder, ignore_errors=True)


def begin_result(choices: ServerChoices, workload: Workload) -> ProfileResult:
    """A result without handlers."""
    return ProfileResult(
        kind=KIND,
        command=choices.command,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=describe_host(),
        settings=choices.settings,
        workload={
            "name": workload.name,
            "identity": workload.identity,
            "mean_bytes": workload.mean_bytes,
            "count": len(workload.paths),
        },
    )


def prepare_profiler(choices: ServerChoices, folder: Path) -> WorkerProfiler | None:
    """The workers' control folder, None without cProfile."""
    if choices.profile_dir is None:
        return None
    control = folder / "cprofile"
    control.mkdir()
    return WorkerProfiler(control)


@contextmanager
def open_target(
    choices: ServerChoices,
    folder: Path,
    profiler: WorkerProfiler | None,
    observer: Observer,
) -> Iterator[Target]:
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
    archive = make_archive(choices, folder)
    env = {} if choices.mar is not None else handler_environ(choices.handler)
    if profiler is not None:
        store = folder / "profiled"
        store.mkdir()
        archive = wrap_archive(archive, store / archive.name)
        env.update(profiler.environ)
    observer.on_step(f"{choices.name}: start")
    with start_server(archive, folder, env) as server:
        yield server


def make_archive(choices: ServerChoices, folder: Path) -> Path:
    """The archive to serve: the user's, or one built with a worker a core."""
    if choices.mar is not None:
        return choices.mar.resolve()
    # Imported here: torch takes seconds, and a server that is not there should be said before.
    from offpath.profiling.baselines.naive_archive import build_naive
    from offpath.profiling.load.model_under_test import load_model
    from offpath.profiling.servers import archives

    model = load_model(choices.model)
    store = folder / "store"
    store.mkdir()
    if choices.handler == NAIVE:
        return build_naive(model, store)
    config = archives.offpath_config(model, count_cores())
    if choices.handler == OFFPATH:
        return archives.build_offpath(model, config, store)
    del config["handler"]
    return archives.build_stock(model, config, store)


def handler_environ(handler: str) -> dict[str, str]:
    """One thread a worker, as there is one worker a core; our prediction log is off."""
    if handler == OFFPATH:
        return {"OFFPATH_PREDICTION_LOG": "off"}
    return {"OMP_NUM_THREADS": "1"}


def measure(
    choices: ServerChoices, target: Target, workload: Workload, observer: Observer
) -> dict[str, Any]:
    """`HandlerProfile.server` of one window of load."""
    observer.on_step(f"{choices.name}: warm-up and {choices.duration_s:g} s of load")
    watcher = SnapshotWatcher(target, observer)
    plan = make_plan(choices, target, workload, choices.warm_up_s, choices.duration_s)
    with GpuSampler() as gpu:
        load = find_generator(choices.generator).run(plan, watcher)
    cpu_ms = watcher.cpu_ms_per_request(load)
    if len(watcher.snapshots) < 2:
        raise ExpectedError(
            f"the window of {choices.duration_s:g} s was too short for two readings of the"
            " metrics: take a longer --duration"
        )
    server = make_server_profile(
        watcher.snapshots[0], watcher.snapshots[-1], target.model, choices.clients, load
    )
    return {
        **server,
        "in_force": target.in_force(),
        "cpu_ms_per_request": cpu_ms,
        "gpu": gpu.samples.to_dict(),
    }


def make_plan(
    choices: ServerChoices,
    target: Target,
    workload: Workload,
    warm_up_s: float,
    seconds: float,
) -> LoadPlan:
    """Closed-loop load on the target."""
    return LoadPlan(
        url=target.predict_url,
        paths=workload.paths,
        clients=choices.clients,
        warm_up_s=warm_up_s,
        seconds=seconds,
        seed=choices.seed,
    )


class ProgressWatcher:
    """Only passes the count on."""

    def __init__(self, target: Target, observer: Observer) -> None:
        self._window = WindowWatcher(target.model, target, observer)

    def on_window(self) -> None:
        """Nothing to sample."""

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """Raises ExpectedError when the server is gone."""
        self._window.on_progress(replies, elapsed_s)


def profile_workers(
    choices: ServerChoices,
    target: Target,
    workload: Workload,
    profiler: WorkerProfiler,
    profile: HandlerProfile,
    observer: Observer,
) -> None:
    """A second load with cProfile in the workers; fills `functions` and `files`."""
    if choices.profile_dir is None:
        raise RuntimeError("workers cannot be profiled without a folder for the files")
    seconds = min(CPROFILE_S, choices.duration_s)
    observer.on_step(f"{choices.name}: {seconds:g} s of load under cProfile")
    plan = make_plan(choices, target, workload, CPROFILE_WARM_UP_S, seconds)
    workers = len(target.groups()["workers"])
    profiler.start()
    find_generator(choices.generator).run(plan, ProgressWatcher(target, observer))
    written = profiler.stop(workers)
    profile.functions = read_functions(written.files, written.model_dir)
    profile.server["doubts"] += written.doubts
    choices.profile_dir.mkdir(parents=True, exist_ok=True)
    for path in written.files:
        kept = choices.profile_dir / f"{choices.name}-worker-{path.name}"
        shutil.copyfile(path, kept)
        profile.files.append(str(kept))
