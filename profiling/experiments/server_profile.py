"""One profile of a running server: loads it and makes the account of its clients' latency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

import httpx

from offpath.archive.photographs import SAMPLE
from offpath.errors import ExpectedError
from offpath.profiling.core.observer import Observer
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.experiments.server_account import (
    find_account_doubts,
    make_account,
    read_counters,
)
from offpath.profiling.load.generators import find_generator
from offpath.profiling.load.parameters import Load
from offpath.profiling.load.prometheus import Snapshot, read_metrics
from offpath.profiling.load.window import Groups, WindowWatcher, measure_load
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.profilers.profile_report import ACCOUNT
from offpath.serving.client import IMAGE_CONTENT_TYPE

EXPERIMENT = "profile-server"
# Java compiles its hot code meanwhile.
WARM_UP_S = 15.0
# Java takes a few milliseconds to make the metrics page.
SNAPSHOT_EVERY_S = 1.0
METRICS_PORT = 8082
TIMEOUT_S = 120.0
# Figures of a window that cannot be measured for a server whose processes are not known: its CPU
# time would count as that of other processes.
NOT_OURS = ("cpu_s.", "other_cores")


@dataclass(frozen=True)
class ServerChoices:
    """The choices for a profile of a server.

    Attributes:
        url: address of a model's predictions on a running server.
        metrics_url: None for METRICS_PORT of the same host.
    """

    clients: int
    duration_s: float
    images: str
    command: str
    url: str
    metrics_url: str | None = None

    @property
    def load(self) -> Load:
        return Load(seconds=self.duration_s, warm_up_s=WARM_UP_S)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "duration_s": self.duration_s,
            "clients": self.clients,
            "warm_up_s": WARM_UP_S,
            "generator": self.load.generator,
        }


class AttachedServer:
    """A `RunningServer` whose processes and log are not known."""

    def __init__(self, predict_url: str) -> None:
        self.predict_url = predict_url

    def groups(self) -> Groups:
        return {}

    def is_running(self) -> bool:
        return True  # If it is not, its metrics cannot be read.

    def log_path(self) -> Path:
        return Path("its own")


@dataclass(frozen=True)
class Target:
    """A model to load, and where it is counted."""

    running: AttachedServer
    model: str
    metrics_url: str


def run_server_profile(
    choices: ServerChoices, observer: Observer, save: Callable[[Run], None]
) -> Run:
    """Profiles a server; calls `save` with the account.

    Raises:
        ExpectedError: the choices are wrong, or the server cannot be reached, does not answer, dies
            or has no metrics.
    """
    target = attach(choices.url, choices.metrics_url)
    # Before images are made, which takes half a minute the first time.
    check_replies(target)
    workload = load_workload(choices.images, progress=observer.on_step)
    run = Run(
        EXPERIMENT,
        choices.command,
        choices.settings,
        variants={choices.url: {}},
        workloads={workload.name: workload.facts},
    )
    add_account(run, choices, target, workload, observer)
    save(run)
    return run


def attach(url: str, metrics_url: str | None) -> Target:
    """Returns a model of a running server, whose name is in `url`."""
    host, _, path = url.rstrip("/").partition("/predictions/")
    if metrics_url is None:
        parts = urlsplit(host)
        metrics_url = f"{parts.scheme}://{parts.hostname}:{METRICS_PORT}"
    metrics_url = metrics_url.rstrip("/").removesuffix("/metrics") + "/metrics"
    return Target(AttachedServer(url), path.split("/")[0], metrics_url)


def check_replies(target: Target) -> None:
    """Raises ExpectedError unless the model answers an image with 200."""
    url, image = target.running.predict_url, SAMPLE.read_bytes()
    headers = {"Content-Type": IMAGE_CONTENT_TYPE}
    try:
        reply = httpx.post(url, content=image, headers=headers, timeout=TIMEOUT_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ExpectedError(
            f"no server at {url!r}: {error}; start one with `offpath serve`"
        ) from error
    if reply.status_code != 200:
        raise ExpectedError(
            f"the model {target.model!r} answered {reply.status_code} to an image:"
            f" {reply.text.strip()[:300]}; the server's log says more"
        )


class SnapshotWatcher(WindowWatcher):
    """A watcher that reads /metrics when the window begins and about once per second inside it.

    The last reading before the window ends is the second snapshot. All clients are busy at both.
    """

    def __init__(self, name: str, target: Target, observer: Observer) -> None:
        super().__init__(name, target.running, observer)
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
    run: Run, choices: ServerChoices, target: Target, workload: Workload, observer: Observer
) -> None:
    """Loads the server for one window and accounts for the clients' mean latency.

    Raises:
        ExpectedError: no reply was good, or the counters cannot be used.
    """
    name, load = choices.url, choices.load
    observer.on_step(f"{name}: warm-up and {choices.duration_s:g} s of load")
    window = load.for_window(target.running.predict_url, workload.paths, choices.clients)
    watcher = SnapshotWatcher(name, target, observer)
    figures = measure_load(watcher, window, find_generator(load.generator))
    figures = {n: v for n, v in figures.items() if not n.startswith(NOT_OURS)}
    if len(watcher.snapshots) < 2:
        raise ExpectedError(
            f"the window of {choices.duration_s:g} s was too short for two readings of the"
            " metrics: measure for longer"
        )
    latencies_ms = figures["latency_ms"]
    if not isinstance(latencies_ms, Sequence) or not latencies_ms:
        replies = {n: v for n, v in figures.items() if n.startswith("replies_")}
        raise ExpectedError(f"no request was answered with 200 in the window: {replies}")
    counters = read_counters(watcher.snapshots[0], watcher.snapshots[-1], target.model)
    mean_ms = fmean(latencies_ms)
    account = make_account(mean_ms, counters)
    parts = {f"{ACCOUNT}.{part}": ms for part, ms in account.items()}
    if counters.batches:
        parts["mean_batch_size"] = counters.items / counters.batches
    run.add(0, name, Cell(workload.name, choices.clients), {**figures, **parts})
    run.details = {"counters": asdict(counters)}
    run.warnings += find_account_doubts(counters, account, mean_ms, choices.clients)
