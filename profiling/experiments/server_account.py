"""Two /metrics snapshots and a client's latencies -> where the client's mean latency went.

Four clocks lie inside one another: the client's, Java's per request (from the whole request read
to the reply begun, with the queue apart), TorchServe's `PredictionTime` around the call of
`handle`, and the handler's own stages. Each line of the account is a stage, or the difference of
two neighbouring clocks; the last line is what was not accounted for. They add up to the client's
mean exactly.

Java counts per request. The handler's counters and `PredictionTime` are per batch, and what a
batch takes each of its requests waits: a batch's time is the latency of every item in it. The
mean over batches stands for the mean over items; that is exact while batches are of one size, and
too low where they are not and time grows with size (the difference is then in "worker protocol").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from offpath.handler.errors import ExpectedError
from offpath.handler.stages import Stage
from offpath.profiling.core.experiment import Observer
from offpath.profiling.experiments.server_target import ServedModel
from offpath.profiling.load.prometheus import Snapshot, read_metrics
from offpath.profiling.load.window import WindowWatcher

REQUESTS = "ts_inference_requests_total"
# With `_total`, see `load/prometheus.py`.
INFERENCE_US = "ts_inference_latency_microseconds_total"
QUEUE_US = "ts_queue_latency_microseconds_total"
STAGES = "offpath_stage_seconds_total"
BATCHES = "offpath_batches_total"
ITEMS = "offpath_items_total"
# Of the stages, what the handler's own account could not place.
OTHER = "other"
# The account's lines, but the handler's stages, and what each belongs to.
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
}
# Reading the page costs Java a few milliseconds.
SNAPSHOT_EVERY_S = 1.0
MIN_BATCHES = 50
# Requests in flight at the window's ends, as a share of those counted, from which it matters.
MAX_EDGE_SHARE = 0.05
# Of the client's mean that the parts may exceed it by.
MAX_EXCESS_SHARE = 0.02


class SnapshotWatcher(WindowWatcher):
    """Reads /metrics at the window's beginning and about once a second inside it.

    The last reading before the window ends is the second snapshot: at both, every client is busy.
    """

    def __init__(self, name: str, target: ServedModel, observer: Observer) -> None:
        super().__init__(name, target, observer)
        self._metrics_url = target.metrics_url
        self._last_s = 0.0
        self.snapshots: list[Snapshot] = []

    def on_window(self) -> None:
        """The window begins."""
        self.snapshots = [read_metrics(self._metrics_url)]
        super().on_window()

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        """Passes the count on; raises ExpectedError when the server is gone."""
        super().on_progress(replies, elapsed_s)
        if elapsed_s - self._last_s >= SNAPSHOT_EVERY_S:
            self._last_s = elapsed_s
            self.snapshots.append(read_metrics(self._metrics_url))


@dataclass(frozen=True)
class Counters:
    """Differences of a model's counters between two snapshots.

    Attributes:
        requests, inference_us, queue_us: of Java, per request: sums.
        answered: replies that Java has sent, None where QueueTime is a gauge or serves several
            models.
        prediction_ms, prediction_batches, handler_ms, handler_batches: TorchServe's histograms, 0
            where they are gauges.
        batches, items, stages_s: our handler's, 0 and empty for any other.
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
        """Requests that were answered, as far as it is counted."""
        return self.answered or self.requests

    @property
    def counted_batches(self) -> float:
        """By our handler, else by TorchServe; 0 where nobody counts them."""
        return self.batches or self.prediction_batches

    @property
    def call_ms(self) -> float:
        """TorchServe's clock around `handle`, a batch; 0 where it keeps only the last value."""
        batches = self.prediction_batches
        return self.prediction_ms / batches if batches else 0.0

    @property
    def mean_batch_size(self) -> float | None:
        """Items a batch; None where nobody counts batches."""
        if not self.counted_batches:
            return None
        items = self.items if self.batches else self.replies
        return items / self.counted_batches


def read_counters(before: Snapshot, after: Snapshot, model: str) -> Counters:
    """Differences of the counters that belong to a model.

    Raises:
        ExpectedError: TorchServe's counters are not there, fell (the server was restarted), or
            counted nothing.
    """
    if not after.has(REQUESTS):
        raise ExpectedError(
            f"the metrics page has no {REQUESTS}: it is not TorchServe's, nothing was asked yet,"
            " or metrics_mode is not prometheus in its config.properties"
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
            f"TorchServe counted no request of the model {model!r} in the window: too short a"
            " --duration, or the metrics are another server's"
        )
    earlier = before.by_label(STAGES, "Stage", ModelName=model)
    later = after.by_label(STAGES, "Stage", ModelName=model)
    # QueueTime knows no models: it counts this one's replies where there is no other.
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
    """The client's mean latency in milliseconds, part by part, in the order of the path."""
    java_ms = counters.inference_us / counters.replies / 1e3
    queue_ms = counters.queue_us / counters.replies / 1e3
    handler = list_handler_parts(counters)
    # Innermost clock around `handle`: TorchServe's own, else the handler's.
    call_ms = counters.call_ms or sum(handler.values())
    account = {
        CLIENT: max(0.0, mean_ms - java_ms),
        QUEUE: queue_ms,
        PROTOCOL if call_ms else WORKER: max(0.0, java_ms - queue_ms - call_ms),
        **handler,
    }
    # Exact addition is a promise: the last line is what the others leave, whatever its sign.
    return {**account, LEFT: mean_ms - sum(account.values())}


def list_handler_parts(counters: Counters) -> dict[str, float]:
    """Milliseconds a batch inside the handler: by stage where it counts them, else as one part."""
    if counters.batches:
        # The page has them in no order; a stage of a later version comes after the known ones.
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


def find_doubts(
    counters: Counters, account: Mapping[str, float], mean_ms: float, clients: int
) -> list[str]:
    """What makes the account less certain, as sentences."""
    doubts = []
    batches = counters.counted_batches
    if batches and batches < MIN_BATCHES:
        doubts.append(
            f"only {batches:.0f} batches were counted; workers report once a second, so take a"
            " longer --duration"
        )
    if not batches:
        doubts.append(
            "this server counts no batches (neither our handler's counters nor PredictionTime as"
            " a histogram): the worker and the handler cannot be told apart"
        )
    if counters.answered is None and clients > MAX_EDGE_SHARE * counters.requests:
        doubts.append(
            f"up to {clients} requests in flight at the window's ends against"
            f" {counters.requests:.0f} counted: take a longer --duration"
        )
    if account[LEFT] <= -MAX_EXCESS_SHARE * mean_ms:
        doubts.append(
            f"the parts are {-account[LEFT]:.1f} ms more than the client waited: the clocks'"
            " windows differ, so take a longer --duration on a steadier machine"
        )
    return doubts
