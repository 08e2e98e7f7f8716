"""The account of a client's mean latency in a server, and its report.

The account is made of two /metrics snapshots and the clients' latencies. Four clocks lie inside
one another: the client's, Java's per request (from the whole request read to the reply begun, with
the queue apart), TorchServe's `PredictionTime` around the call of `handle`, and the handler's own
stages. Each part of the account is a stage, or the difference of two neighbouring clocks. The last
part is what was not accounted for. The parts add up to the client's mean exactly.

Java counts per request. The handler's counters and `PredictionTime` are per batch, and each request
waits for its whole batch: a batch's time is the latency of every item in it. The mean over batches
stands for the mean over items. That is exact if all batches have one size. Otherwise it is too low
if time grows with size, and the difference appears in "worker protocol".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from offpath.handler.errors import ExpectedError
from offpath.handler.stages import Stage
from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.load.prometheus import Snapshot
from offpath.profiling.profilers.profile_report import ACCOUNT, TOTAL, Profiled, draw_bars
from offpath.profiling.report.charts import Histogram
from offpath.profiling.report.document import Document, Section, format_table
from offpath.profiling.report.measured import describe_run

REQUESTS = "ts_inference_requests_total"
# `load/prometheus.py` adds `_total` to these names.
INFERENCE_US = "ts_inference_latency_microseconds_total"
QUEUE_US = "ts_queue_latency_microseconds_total"
STAGES = "offpath_stage_seconds_total"
BATCHES = "offpath_batches_total"
ITEMS = "offpath_items_total"
# The stage for time that the handler itself could not assign.
OTHER = "other"
# The parts of the account besides the handler's stages, and the place of each.
CLIENT, QUEUE = "client, socket and front end", "queue"
PROTOCOL, WORKER = "worker protocol", "worker and handler"
HANDLER, HANDLER_OTHER = "handler", "handler, other"
LEFT = "not accounted for"
WHERE = {
    CLIENT: "client",
    QUEUE: "queue",
    PROTOCOL: "worker",
    WORKER: "worker",
    LEFT: "unaccounted",
    TOTAL: "client",
}
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
    "cpu_ms.frontend": "CPU ms per request, Java",
    "cpu_ms.workers": "CPU ms per request, workers",
    "cpu_ms.generator": "CPU ms per request, load generator",
    "other_cores": "cores busy with something else",
    "gpu_percent": "GPU, % busy",
    "gpu_mb": "GPU memory, MB",
}


@dataclass(frozen=True)
class Counters:
    """Differences of a model's counters between two snapshots.

    Attributes:
        requests, inference_us, queue_us: Java's sums over requests.
        answered: replies that Java has sent; None if QueueTime is a gauge or serves several models.
        prediction_ms, prediction_batches, handler_ms, handler_batches: TorchServe's histograms; 0
            if they are gauges.
        batches, items, stages_s: our handler's counters; 0 and empty for any other handler.
    """

    requests: float
    answered: float | None
    inference_us: float
    queue_us: float
    prediction_ms: float
    prediction_batches: float
    handler_ms: float
    handler_batches: float
    batches: float
    items: float
    stages_s: Mapping[str, float]

    @property
    def replies(self) -> float:
        """Number of answered requests, or of all requests if answers are not counted."""
        return self.answered or self.requests

    @property
    def counted_batches(self) -> float:
        """Number of batches that our handler or else TorchServe counted; 0 if neither did."""
        return self.batches or self.prediction_batches

    @property
    def call_ms(self) -> float:
        """TorchServe's time around `handle` per batch; 0 if it keeps only the last value."""
        batches = self.prediction_batches
        return self.prediction_ms / batches if batches else 0.0

    @property
    def mean_batch_size(self) -> float | None:
        if not self.counted_batches:
            return None
        items = self.items if self.batches else self.replies
        return items / self.counted_batches


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

    def change(name: str, **labels: str) -> float:
        difference = after.total(name, **labels) - before.total(name, **labels)
        if difference < 0:
            raise ExpectedError(
                f"the counter {name} fell by {-difference:g} under load: the server was"
                " restarted; its log says why"
            )
        return difference

    requests = change(REQUESTS, model_name=model)
    if not requests:
        raise ExpectedError(
            f"TorchServe counted no request of the model {model!r} in the window: the window was"
            " too short, or the metrics belong to another server"
        )
    earlier = before.by_label(STAGES, "Stage", ModelName=model)
    later = after.by_label(STAGES, "Stage", ModelName=model)
    # QueueTime has no label for the model: it is this model's only if there is no other.
    is_alone = len(after.by_label(REQUESTS, "model_name")) == 1
    has_answered = is_alone and after.has("QueueTime_count")
    return Counters(
        requests=requests,
        answered=change("QueueTime_count") if has_answered else None,
        inference_us=change(INFERENCE_US, model_name=model),
        queue_us=change(QUEUE_US, model_name=model),
        prediction_ms=change("PredictionTime_sum", ModelName=model),
        prediction_batches=change("PredictionTime_count", ModelName=model),
        handler_ms=change("HandlerTime_sum", ModelName=model),
        handler_batches=change("HandlerTime_count", ModelName=model),
        batches=change(BATCHES, ModelName=model),
        items=change(ITEMS, ModelName=model),
        stages_s={name: s - earlier.get(name, 0.0) for name, s in later.items()},
    )


def make_account(mean_ms: float, counters: Counters) -> dict[str, float]:
    """Returns the client's mean latency in milliseconds by part, in the order of the path."""
    java_ms = counters.inference_us / counters.replies / 1e3
    queue_ms = counters.queue_us / counters.replies / 1e3
    handler = list_handler_parts(counters)
    # The innermost clock around `handle` is TorchServe's own, or else the handler's.
    call_ms = counters.call_ms or sum(handler.values())
    account = {
        CLIENT: max(0.0, mean_ms - java_ms),
        QUEUE: queue_ms,
        PROTOCOL if call_ms else WORKER: max(0.0, java_ms - queue_ms - call_ms),
        **handler,
    }
    # The last part makes the sum exact, whatever its sign.
    return {**account, LEFT: mean_ms - sum(account.values())}


def list_handler_parts(counters: Counters) -> dict[str, float]:
    """Returns milliseconds per batch inside the handler: by stage if counted, else as one part."""
    if counters.batches:
        # The page is not ordered. Stages of a later version come after the known stages.
        known = [stage.value for stage in Stage if stage.value in counters.stages_s]
        names = dict.fromkeys([*known, *counters.stages_s, OTHER])
        return {
            HANDLER_OTHER if name == OTHER else name: ms
            for name in sorted(names, key=lambda name: name == OTHER)
            for ms in [1e3 * counters.stages_s.get(name, 0.0) / counters.batches]
        }
    if counters.handler_batches:
        return {HANDLER: counters.handler_ms / counters.handler_batches}
    return {HANDLER: counters.call_ms} if counters.call_ms else {}


def find_account_doubts(
    counters: Counters, account: Mapping[str, float], mean_ms: float, clients: int
) -> list[str]:
    doubts = []
    batches = counters.counted_batches
    if batches and batches < MIN_BATCHES:
        doubts.append(
            f"only {batches:.0f} batches were counted; workers report once per second, so measure"
            " for longer"
        )
    if not batches:
        doubts.append(
            "this server counts no batches (neither our handler's counters nor PredictionTime as"
            " a histogram): the worker and the handler cannot be told apart"
        )
    if counters.answered is None and clients > MAX_EDGE_SHARE * counters.requests:
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


def explain_account(server: Profiled) -> str:
    note = "Means in the order of the path; they add up to the client's mean."
    if server.cell.clients != 1:
        return note
    return (
        f"{note} With one client, no request waits for another: the queue holds only the wait"
        " for a batch to fill (max_batch_delay_ms)."
    )


def list_counts(server: Profiled) -> Iterator[tuple[str, str]]:
    yield "clients", str(server.cell.clients)
    for metric, title in COUNTED.items():
        if (value := server.value(metric)) is not None:
            yield title, format_figure(value)
    for key, value in server.summary.run.details["in_force"].items():
        yield f"in force: {key}", str(value)


def document_of(run: Run, baseline: str | None = None) -> Document:
    (name,) = run.variants
    server = Profiled(Summary(run), name)
    charts = draw_bars([server], TITLE, ACCOUNT)
    account = [
        [row.part, WHERE.get(row.part, "handler"), row.format_ms(), row.format_share()]
        for row in server.list_rows(ACCOUNT)
    ]
    columns = ["part", "where", "ms", "share"]
    sections = [
        Section(
            "The account",
            format_table(columns, account, title=name, words=2, has_total=True),
            charts,
            explain_account(server),
        ),
        Section(
            "How long clients wait",
            charts=[Histogram(name, "ms per request", server.values(LATENCY))],
        ),
        Section("What was counted", format_table(["", "value"], list_counts(server), title=name)),
    ]
    title = f"{TITLE}: {name}"
    return describe_run(run, Document(title, sections, warnings=find_doubts(run), headline=charts))
