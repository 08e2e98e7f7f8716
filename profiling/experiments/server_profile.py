"""Two /metrics snapshots and a client's latencies -> where the client's mean latency went.

Four clocks lie inside one another: the client's, Java's per request (from the whole request read
to the reply begun, with the queue apart), TorchServe's `PredictionTime` around the call of
`handle`, and the handler's own stages. Each line of the account is a stage, or the difference of
two neighbouring clocks; the last line is what was not accounted for. They add up to the client's
mean exactly.

Java counts per request. The handler's counters and `PredictionTime` are per batch, and what a
batch takes each of its requests waits: a batch's time is the latency of every item in it. The
mean over batches stands for the mean over items; that is exact while batches are of one size, and
too low by at most `batch_weight` where they are not and time grows with size (the difference is
then in "worker protocol").

`HandlerProfile.server` is a plain dict:

    client        clients, replies, failures, statuses, elapsed_s, latencies_ms (raw, of the 200s)
    window_s      between the two snapshots
    counters      differences between the snapshots, see `read_counters`
    account       [{"part", "where", "ms"}, ...] in the order of the path, adds up to mean_ms;
                  where: client, queue, worker, handler, unaccounted
    mean_ms       of the client
    mean_batch_size, batch_weight   None where nothing counts batches
    in_force      batch size, delay, workers, as the management API says; {} where it is not asked
    cpu_ms_per_request   by process group (frontend, workers, generator, other); {} for a server
                  that we did not start
    gpu           see `profiling.gpu.GpuSamples`
    doubts        sentences
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.handler.stages import Stage
from offpath.profiling.load.plan import LoadSample
from offpath.profiling.load.prometheus import Snapshot

REQUESTS = "ts_inference_requests_total"
# With `_total`, see `profiling.prometheus`.
INFERENCE_US = "ts_inference_latency_microseconds_total"
QUEUE_US = "ts_queue_latency_microseconds_total"
STAGES = "offpath_stage_seconds_total"
BATCHES = "offpath_batches_total"
ITEMS = "offpath_items_total"
SIZES = "offpath_batch_size_bucket_total"
# Of the stages, what the handler's own account could not place.
OTHER = "other"
MIN_BATCHES = 50
# Requests in flight at the window's ends, as a share of those counted, from which it matters.
MAX_EDGE_SHARE = 0.05
# Of the client's mean that the parts may exceed it by.
MAX_EXCESS_SHARE = 0.02

Counters = dict[str, Any]


def read_counters(before: Snapshot, after: Snapshot, model: str) -> Counters:
    """Differences of the counters that belong to a model.

    Returns:
        requests, inference_us, queue_us (Java, per request: sums); answered (replies that Java
        has sent, None where QueueTime is a gauge or serves several models); prediction_ms,
        prediction_batches, handler_ms, handler_batches (TorchServe's histograms, 0 where they
        are gauges); batches, items, stages_s, batch_sizes_le (our handler's, empty for any
        other).

    Raises:
        ExpectedError: TorchServe's counters are not there, or fell: the server was restarted.
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

    def change_by(name: str, label: str) -> dict[str, float]:
        earlier = before.by_label(name, label, ModelName=model)
        later = after.by_label(name, label, ModelName=model)
        return {key: value - earlier.get(key, 0.0) for key, value in later.items()}

    # QueueTime knows no models: it counts this one's replies where there is no other.
    is_alone = len(after.by_label(REQUESTS, "model_name")) == 1
    has_answered = is_alone and after.has("QueueTime_count")
    return {
        "requests": change(REQUESTS, model_name=model),
        "answered": change("QueueTime_count") if has_answered else None,
        "inference_us": change(INFERENCE_US, model_name=model),
        "queue_us": change(QUEUE_US, model_name=model),
        "prediction_ms": change("PredictionTime_sum", ModelName=model),
        "prediction_batches": change("PredictionTime_count", ModelName=model),
        "handler_ms": change("HandlerTime_sum", ModelName=model),
        "handler_batches": change("HandlerTime_count", ModelName=model),
        "batches": change(BATCHES, ModelName=model),
        "items": change(ITEMS, ModelName=model),
        "stages_s": change_by(STAGES, "Stage"),
        "batch_sizes_le": change_by(SIZES, "Le"),
    }


def make_server_profile(
    before: Snapshot, after: Snapshot, model: str, clients: int, load: LoadSample
) -> dict[str, Any]:
    """The part of `HandlerProfile.server` that snapshots and the load tell (module docstring).

    Raises:
        ExpectedError: no good reply, or counters that do not serve.
    """
    if not load.latencies_ms:
        raise ExpectedError(
            f"no request was answered with 200 in the window; replies by status: {load.statuses}"
        )
    counters = read_counters(before, after, model)
    if not counters["requests"]:
        raise ExpectedError(
            f"TorchServe counted no request of the model {model!r} in the window: too short a"
            " --duration, or the metrics are another server's"
        )
    mean_ms = fmean(load.latencies_ms)
    account = make_account(mean_ms, counters)
    return {
        "client": {
            "clients": clients,
            "replies": load.ok,
            "failures": load.failures,
            "statuses": dict(load.statuses),
            "elapsed_s": load.elapsed_s,
            "latencies_ms": load.latencies_ms,
        },
        "window_s": after.at_s - before.at_s,
        "counters": counters,
        "account": account,
        "mean_ms": mean_ms,
        "mean_batch_size": mean_batch_size(counters),
        "batch_weight": batch_weight(counters),
        "doubts": [
            *find_doubts(counters, clients, load),
            *find_contradiction(account, mean_ms),
        ],
    }


def make_account(mean_ms: float, counters: Counters) -> list[dict[str, Any]]:
    """The client's mean latency, part by part; see the module docstring."""
    answered = counters["answered"] or counters["requests"]
    java_ms = counters["inference_us"] / answered / 1e3
    queue_ms = counters["queue_us"] / answered / 1e3
    handler = handler_parts(counters)
    # Innermost clock around `handle`: TorchServe's own, else the handler's.
    call_ms = prediction_ms(counters) or sum(handler.values())
    rows = [
        ("client, socket and front end", "client", max(0.0, mean_ms - java_ms)),
        ("queue", "queue", queue_ms),
        (
            "worker protocol" if call_ms else "worker and handler",
            "worker",
            max(0.0, java_ms - queue_ms - call_ms),
        ),
        *((name, "handler", ms) for name, ms in handler.items()),
    ]
    # Exact addition is a promise: the last line is what the others leave, whatever its sign.
    left = mean_ms - sum(ms for _, _, ms in rows)
    rows.append(("not accounted for", "unaccounted", left))
    return [{"part": part, "where": where, "ms": ms} for part, where, ms in rows]


def handler_parts(counters: Counters) -> dict[str, float]:
    """Milliseconds a batch inside the handler: by stage where it counts them, else as one part."""
    if counters["batches"]:
        seconds = counters["stages_s"]
        # The page has them in no order; a stage of a later version comes after the known ones.
        order = [stage.value for stage in Stage]
        names = sorted(
            seconds, key=lambda n: order.index(n) if n in order else len(order)
        )
        stages = {
            name: 1e3 * seconds[name] / counters["batches"]
            for name in names
            if name != OTHER
        }
        other_s = seconds.get(OTHER, 0.0)
        return {**stages, "handler, other": 1e3 * other_s / counters["batches"]}
    if counters["handler_batches"]:
        return {"handler": counters["handler_ms"] / counters["handler_batches"]}
    if counters["prediction_batches"]:
        return {"handler": prediction_ms(counters)}
    return {}


def prediction_ms(counters: Counters) -> float:
    """TorchServe's clock around `handle`, a batch; 0 where it keeps only the last value."""
    batches = counters["prediction_batches"]
    return counters["prediction_ms"] / batches if batches else 0.0


def mean_batch_size(counters: Counters) -> float | None:
    """Items a batch: by our handler's counters, else by TorchServe's."""
    if counters["batches"]:
        return float(counters["items"] / counters["batches"])
    if counters["prediction_batches"]:
        answered = counters["answered"] or counters["requests"]
        return float(answered / counters["prediction_batches"])
    return None


def batch_weight(counters: Counters) -> float | None:
    """How much a mean over items can exceed the mean over batches, as a ratio of at least 1.

    For a time in proportion to batch size n it is E[n^2] / E[n]^2; this is the highest value that
    the counted buckets and the mean allow. None without our handler's counters.
    """
    if not counters["batches"] or not counters["batch_sizes_le"]:
        return None
    mean = counters["items"] / counters["batches"]
    shares = bucket_shares(counters["batch_sizes_le"])
    # Lowest sizes first, then raised bucket by bucket, where it adds most, up to the mean.
    squares = sum(share * low * low for low, _, share in shares)
    left = mean - sum(share * low for low, _, share in shares)
    for low, high, share in sorted(shares, key=lambda row: -(row[0] + row[1])):
        raised = min(max(left, 0.0), share * (high - low))
        squares += raised * (low + high)
        left -= raised
    return float(max(1.0, squares / mean**2))


def bucket_shares(cumulative: Mapping[str, float]) -> list[tuple[int, int, float]]:
    """(lowest size, highest size, share of the batches) of each bucket that is not empty."""
    bounds = sorted((int(key), n) for key, n in cumulative.items() if key != "+Inf")
    total = max(cumulative.values())
    rows, below, counted = [], 0, 0.0
    for bound, count in bounds:
        if count > counted:
            rows.append((below + 1, bound, (count - counted) / total))
        below, counted = bound, max(count, counted)
    if total > counted:
        # Nothing says how large; twice the last bound is as far as the buckets' own steps go.
        rows.append((below + 1, 2 * below, (total - counted) / total))
    return rows


def find_doubts(counters: Counters, clients: int, load: LoadSample) -> list[str]:
    """What makes the account less certain, as sentences."""
    doubts = []
    batches = counters["batches"] or counters["prediction_batches"]
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
    if counters["answered"] is None and clients > MAX_EDGE_SHARE * counters["requests"]:
        doubts.append(
            f"up to {clients} requests in flight at the window's ends against"
            f" {counters['requests']:.0f} counted: take a longer --duration"
        )
    if load.failures:
        doubts.append(
            f"{load.failures} replies were not 200 ({dict(load.statuses)}); Java's counters"
            " include those that the handler answered, the client's mean does not"
        )
    return doubts


def find_contradiction(
    account: Sequence[Mapping[str, Any]], mean_ms: float
) -> list[str]:
    """The doubt that an account of more than the client's mean raises."""
    left_ms = account_ms(account, "unaccounted")
    if left_ms > -MAX_EXCESS_SHARE * mean_ms:
        return []
    return [
        f"the parts are {-left_ms:.1f} ms more than the client waited: the clocks' windows"
        " differ, so take a longer --duration on a steadier machine"
    ]


def account_ms(account: Sequence[Mapping[str, Any]], where: str) -> float:
    """Sum of the account's lines of one kind."""
    return float(sum(row["ms"] for row in account if row["where"] == where))
