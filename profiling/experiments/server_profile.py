"""`profile server`: loads a running server and accounts for its clients' mean latency.

The account is made of two /metrics snapshots and the clients' latencies. Three clocks lie inside
one another: the client's, Java's per request (from the whole request read to the reply begun, with
the queue apart), and the handler's own stages. Each part of the account is a stage, or the
difference of two neighbouring clocks. The parts add up to the client's mean exactly; where the
clocks contradict each other, the last part holds the difference.

Java counts per request. The handler's counters are per batch, and each request waits for its whole
batch: a batch's time is the latency of every item in it. The mean over batches stands for the mean
over items. That is exact if all batches have one size. Otherwise it is too low if time grows with
size, and the difference appears in "worker protocol".
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

import httpx

from offpath.archive.photographs import SAMPLE
from offpath.errors import ExpectedError
from offpath.handler.stages import Stage
from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.run import Cell, Observer, Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.load.generators import Load
from offpath.profiling.load.load_window import RunningServer, WindowWatcher, measure_load
from offpath.profiling.load.prometheus import Snapshot, read_metrics
from offpath.profiling.load.workload import Workload, load_workload
from offpath.profiling.profilers.profile_report import ACCOUNT, Profiled, draw_bars
from offpath.profiling.report.document import Document, Section, describe_run, format_table
from offpath.serving.client import IMAGE_CONTENT_TYPE

REQUESTS = "ts_inference_requests_total"
INFERENCE_US = "ts_inference_latency_microseconds"
QUEUE_US = "ts_queue_latency_microseconds"
STAGES = "offpath_stage_seconds_total"
BATCHES = "offpath_batches_total"
ITEMS = "offpath_items_total"
# The stage for time that the handler itself could not assign.
OTHER = "other"
# The parts of the account besides the handler's stages.
CLIENT, QUEUE = "client, socket and front end", "queue"
PROTOCOL, WORKER = "worker protocol", "worker and handler"
HANDLER_OTHER = "handler, other"
LEFT = "not accounted for"
MIN_BATCHES = 50
# From this share of the counted requests on, those in flight at the window's ends matter.
MAX_EDGE_SHARE = 0.05
# The share of the client's mean by which the parts may exceed it.
MAX_EXCESS_SHARE = 0.02
TITLE = "Where a client's latency goes, from its socket to the model"
# Metric of the summary -> its name in the report.
COUNTED = {
    "replies": "replies",
    "failed": "failures",
    "rate": "replies per second",
    f"{LATENCY}.mean": "mean ms",
    **{f"{LATENCY}.p{percent}": f"p{percent} ms" for percent in (50, 95, 99)},
    "mean_batch_size": "mean batch size",
    "gpu_percent": "GPU, % busy",
    "gpu_mb": "GPU memory, MB",
}
EXPERIMENT = "profile-server"
# Java compiles its hot code meanwhile.
WARM_UP_S = 15.0
# Java takes a few milliseconds to make the metrics page.
SNAPSHOT_EVERY_S = 1.0
METRICS_PORT = 8082
# Workers report their counters about once per second.
COUNTED_WITHIN_S, COUNTED_POLL_S = 5.0, 0.2
TIMEOUT_S = 120.0
# Figures of a window that cannot be measured for a server whose processes are not known: its CPU
# time would count as that of other processes.
NOT_OURS = ("cpu_s.", "other_cores")


@dataclass(frozen=True)
class Counters:
    """Differences of a model's counters between two snapshots.

    Attributes:
        requests, inference_us, queue_us: Java's sums over requests.
        batches, items, stages_s: our handler's counters; 0 and empty for any other handler.
    """

    requests: float
    inference_us: float
    queue_us: float
    batches: float
    items: float
    stages_s: Mapping[str, float]


def read_counters(before: Snapshot, after: Snapshot, model: str) -> Counters:
    """Returns the differences of a model's counters.

    Raises:
        ExpectedError: the counters fell (the server was restarted), or counted nothing.
    """
    requests = change(before, after, REQUESTS, model_name=model)
    if not requests:
        raise ExpectedError(
            f"the server counted no request of the model {model!r} in the window: it was too short"
        )
    earlier = before.by_label(STAGES, "Stage", ModelName=model)
    later = after.by_label(STAGES, "Stage", ModelName=model)
    return Counters(
        requests=requests,
        inference_us=change(before, after, INFERENCE_US, model_name=model),
        queue_us=change(before, after, QUEUE_US, model_name=model),
        batches=change(before, after, BATCHES, ModelName=model),
        items=change(before, after, ITEMS, ModelName=model),
        stages_s={name: seconds - earlier.get(name, 0.0) for name, seconds in later.items()},
    )


def change(before: Snapshot, after: Snapshot, name: str, **labels: str) -> float:
    difference = after.total(name, **labels) - before.total(name, **labels)
    if difference < 0:
        raise ExpectedError(
            f"the counter {name} fell by {-difference:g} under load: the server was restarted; its"
            " log says why"
        )
    return difference


def make_account(mean_ms: float, counters: Counters) -> dict[str, float]:
    """Returns the client's mean latency in milliseconds by part, in the order of the path."""
    java_ms = counters.inference_us / counters.requests / 1e3
    queue_ms = counters.queue_us / counters.requests / 1e3
    handler = list_handler_parts(counters)
    account = {
        CLIENT: max(0.0, mean_ms - java_ms),
        QUEUE: queue_ms,
        PROTOCOL if handler else WORKER: max(0.0, java_ms - queue_ms - sum(handler.values())),
        **handler,
    }
    # The last part makes the sum exact, whatever its sign.
    return {**account, LEFT: mean_ms - sum(account.values())}


def list_handler_parts(counters: Counters) -> dict[str, float]:
    """Returns milliseconds per batch by our handler's stages; empty for any other handler."""
    if not counters.batches:
        return {}
    # The page is not ordered. Stages of a later version come after the known stages.
    known = [stage.value for stage in Stage if stage.value in counters.stages_s]
    names = dict.fromkeys([*known, *counters.stages_s, OTHER])
    return {
        HANDLER_OTHER if name == OTHER else name: ms
        for name in sorted(names, key=lambda name: name == OTHER)
        for ms in [1e3 * counters.stages_s.get(name, 0.0) / counters.batches]
    }


def find_account_doubts(
    counters: Counters, account: Mapping[str, float], mean_ms: float, clients: int
) -> list[str]:
    doubts = []
    if not counters.batches:
        doubts.append(
            "this server lacks our handler's counters: worker and handler cannot be told apart"
        )
    elif counters.batches < MIN_BATCHES:
        doubts.append(
            f"only {counters.batches:.0f} batches were counted; workers report once per second, so"
            " measure for longer"
        )
    if clients > MAX_EDGE_SHARE * counters.requests:
        doubts.append(
            f"up to {clients} requests in flight at the window's ends against"
            f" {counters.requests:.0f} counted: measure for longer"
        )
    if account[LEFT] <= -MAX_EXCESS_SHARE * mean_ms:
        doubts.append(
            f"the parts are {-account[LEFT]:.1f} ms more than the client waited: the clocks'"
            " windows differ, so measure for longer on a steadier machine"
        )
    return doubts


def list_counts(server: Profiled) -> Iterator[tuple[str, str]]:
    yield "clients", str(server.cell.clients)
    for metric, title in COUNTED.items():
        if (value := server.value(metric)) is not None:
            yield title, format_figure(value)


def document_of(run: Run, baseline: str | None = None) -> Document:
    (name,) = run.variants
    server = Profiled(Summary(run), name)
    charts = draw_bars([server], TITLE, ACCOUNT)
    account = server.list_rows(ACCOUNT)
    sections = [
        Section(
            "The account",
            format_table(["part", "ms", "share"], account, title=name, has_total=True),
            charts,
            "Means in the order of the path; they add up to the client's mean.",
        ),
        Section("What was counted", format_table(["", "value"], list_counts(server), title=name)),
    ]
    title = f"{TITLE}: {name}"
    return describe_run(run, Document(title, sections, warnings=find_doubts(run), headline=charts))


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

    @property
    def model(self) -> str:
        return self.url.partition("/predictions/")[2].split("/")[0]

    @property
    def metrics_page(self) -> str:
        url = self.metrics_url
        if url is None:
            parts = urlsplit(self.url)
            url = f"{parts.scheme}://{parts.hostname}:{METRICS_PORT}"
        return url.rstrip("/").removesuffix("/metrics") + "/metrics"


def run_server_profile(
    choices: ServerChoices, observer: Observer, save: Callable[[Run], None]
) -> Run:
    """Profiles a server; calls `save` with the account.

    Raises:
        ExpectedError: the choices are wrong, or the server cannot be reached, does not answer, dies
            or has no metrics.
    """
    # Before images are made, which takes half a minute the first time, and before the load.
    check_replies(choices)
    check_counted(choices)
    workload = load_workload(choices.images, progress=observer.on_step)
    run = Run(
        EXPERIMENT,
        choices.command,
        choices.settings,
        variants={choices.url: {}},
        workloads={workload.name: workload.facts},
    )
    add_account(run, choices, workload, observer)
    save(run)
    return run


def check_replies(choices: ServerChoices) -> None:
    """Raises ExpectedError unless the model answers an image with 200."""
    url, image = choices.url, SAMPLE.read_bytes()
    headers = {"Content-Type": IMAGE_CONTENT_TYPE}
    try:
        reply = httpx.post(url, content=image, headers=headers, timeout=TIMEOUT_S, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ExpectedError(
            f"no server at {url!r}: {error}; start one with `offpath serve`"
        ) from error
    if reply.status_code != 200:
        raise ExpectedError(
            f"the model {choices.model!r} answered {reply.status_code} to an image:"
            f" {reply.text.strip()[:300]}; the server's log says more"
        )


def check_counted(choices: ServerChoices) -> None:
    """Raises ExpectedError unless the metrics page counts the model's requests."""
    deadline_s, page = time.monotonic() + COUNTED_WITHIN_S, choices.metrics_page
    while not read_metrics(page).total(REQUESTS, model_name=choices.model):
        if time.monotonic() > deadline_s:
            raise ExpectedError(
                f"{page!r} counts no request of the model {choices.model!r}: it is another server's"
                " page (see --metrics-url), or metrics_mode is not prometheus in the server's"
                " config.properties"
            )
        time.sleep(COUNTED_POLL_S)


class SnapshotWatcher(WindowWatcher):
    """A watcher that reads /metrics when the window begins and about once per second inside it.

    The last reading before the window ends is the second snapshot. All clients are busy at both.
    """

    def __init__(self, choices: ServerChoices, observer: Observer) -> None:
        # Its processes and log are not known. A dead server's metrics tell of it.
        server = RunningServer(choices.url, dict, lambda: True, Path("its own"), math.nan)
        super().__init__(choices.url, server, observer)
        self._metrics_page = choices.metrics_page
        self._last_s = 0.0
        self.snapshots: list[Snapshot] = []

    def on_window(self) -> None:
        self.snapshots = [read_metrics(self._metrics_page)]
        super().on_window()

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        super().on_progress(replies, elapsed_s)
        if elapsed_s - self._last_s >= SNAPSHOT_EVERY_S:
            self._last_s = elapsed_s
            self.snapshots.append(read_metrics(self._metrics_page))


def add_account(run: Run, choices: ServerChoices, workload: Workload, observer: Observer) -> None:
    """Loads the server for one window and accounts for the clients' mean latency.

    Raises:
        ExpectedError: no reply was good, or the counters cannot be used.
    """
    observer.on_step(f"{choices.url}: warm-up and {choices.duration_s:g} s of load")
    window = choices.load.for_window(choices.url, workload.paths, choices.clients)
    watcher = SnapshotWatcher(choices, observer)
    figures = measure_load(watcher, window)
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
    counters = read_counters(watcher.snapshots[0], watcher.snapshots[-1], choices.model)
    mean_ms = fmean(latencies_ms)
    account = make_account(mean_ms, counters)
    parts = {f"{ACCOUNT}.{part}": ms for part, ms in account.items()}
    if counters.batches:
        parts["mean_batch_size"] = counters.items / counters.batches
    run.add(0, choices.url, Cell(workload.name, choices.clients), {**figures, **parts})
    run.details = {"counters": asdict(counters)}
    run.warnings += find_account_doubts(counters, account, mean_ms, choices.clients)
