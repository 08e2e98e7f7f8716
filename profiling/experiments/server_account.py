"""The account of a client's mean latency in a server, and its report.

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from offpath.errors import ExpectedError
from offpath.handler.stages import Stage
from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.load.prometheus import Snapshot
from offpath.profiling.profilers.profile_report import ACCOUNT, Profiled, draw_bars
from offpath.profiling.report.document import Document, Section, describe_run, format_table

REQUESTS = "ts_inference_requests_total"
# `load/prometheus.py` adds `_total` to these names.
INFERENCE_US = "ts_inference_latency_microseconds_total"
QUEUE_US = "ts_queue_latency_microseconds_total"
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
        ExpectedError: TorchServe's counters are missing, fell (the server was restarted), or
            counted nothing.
    """
    if not after.has(REQUESTS):
        raise ExpectedError(
            f"the metrics page has no {REQUESTS}: it is not TorchServe's, the server had no"
            " request yet, or metrics_mode is not prometheus in its config.properties"
        )
    requests = change(before, after, REQUESTS, model_name=model)
    if not requests:
        raise ExpectedError(
            f"TorchServe counted no request of the model {model!r} in the window: the window was"
            " too short, or the metrics belong to another server"
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
    account = [[row.part, row.format_ms(), row.format_share()] for row in server.list_rows(ACCOUNT)]
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
