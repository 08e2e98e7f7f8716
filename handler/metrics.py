"""Turns batch timings and counters into TorchServe metrics.

TorchServe reads metrics from the worker's stdout, one line each. To avoid a line per request or per
batch, values are summed here, and a thread writes the differences about once per second. Names and
dimensions are declared in serving/conf/metrics.yaml, or found by `model_metrics_auto_detect=true`.
A SIGKILL loses the counts of the current second.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from ts.metrics.metric_cache_errors import MetricsCacheKeyError
from ts.metrics.metric_type_enum import MetricTypes

from offpath.handler.latency import (
    REQUEST_BUCKETS,
    STAGE_BUCKETS,
    Histograms,
    name_class,
)
from offpath.handler.prediction_log.prediction_log import LogCounters
from offpath.handler.process.foreign_server import declares
from offpath.handler.stages import BatchTimings

# Buckets are many lines, so they are written less often than sums.
BUCKETS_INTERVAL_S = 5.0
BATCH_SIZE_BOUNDS = (1, 2, 4, 8, 16, 32, 64)
DECODED_BY_CPU = "offpath_gpu_decode_out_of_memory_total"
MODEL_FAILURES = ("offpath_out_of_memory_total", "offpath_sick_workers_total")
LOG_COUNTERS = ("appended", "shipped", "dropped", "retries")
# LogCounters' attribute -> metric.
LOG_GAUGES = {
    "spool_bytes": "offpath_log_spool_bytes",
    "oldest_unshipped_age_s": "offpath_log_oldest_unshipped_seconds",
    "last_success_unix_s": "offpath_log_last_success_timestamp_seconds",
}

# A series is a metric name and the values of its dimensions after ModelName.
MetricKey = tuple[str, tuple[str, ...]]
DIMENSIONS = {
    "offpath_stage_seconds_total": ["ModelName", "Stage"],
    "offpath_batch_size_bucket_total": ["ModelName", "Le"],
    "offpath_errors_total": ["ModelName", "Type"],
    STAGE_BUCKETS: ["ModelName", "Stage", "le"],
    REQUEST_BUCKETS: ["ModelName", "status", "le"],
}


class MetricsEmitter:
    """Sums the reports of batches and hands the differences to TorchServe.

    Args:
        cache: TorchServe's metrics cache (`context.metrics`).
        read_log: returns the prediction log's counters; called before each write.
    """

    def __init__(
        self,
        cache: Any,
        model_name: str,
        interval_s: float,
        read_log: Callable[[], LogCounters] | None = None,
    ) -> None:
        self._cache = cache
        self._model_name = model_name
        self._interval_s = interval_s
        self._read_log = read_log
        # No age is -1, so the first write always has the age: until then TorchServe shows the age
        # that a dead worker has left.
        self._log_counters = LogCounters(oldest_unshipped_age_s=-1.0)
        self._sums: dict[MetricKey, float] = defaultdict(float)
        self._histograms = make_histograms()
        # A server that does not declare them would log each of their many lines twice.
        self._takes_buckets = declares(cache, STAGE_BUCKETS)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self, refused_engines: int = 0) -> None:
        """Counts this worker's start and starts the writing thread.

        Zeros are written too, because Prometheus sees no increase in a counter that appears with
        its first event.
        """
        counts = {
            "offpath_worker_starts_total": 1,
            "offpath_engine_refusals_total": refused_engines,
            **dict.fromkeys((*MODEL_FAILURES, DECODED_BY_CPU), 0),
        }
        if self._read_log is not None:
            counts |= {f"offpath_log_{name}_total": 0 for name in LOG_COUNTERS}
        for name, count in counts.items():
            self._emit(name, (), count, MetricTypes.COUNTER)
        self._thread.start()

    def stop(self) -> None:
        """Writes the last differences and ends the thread."""
        self._stopped.set()
        self._thread.join()

    def count_batch(self, timings: BatchTimings, size: int, error_types: Sequence[str]) -> None:
        stages = {stage.value: seconds for stage, seconds in timings.seconds.items()}
        with self._lock:
            buckets = self._histograms[STAGE_BUCKETS]
            for name, seconds in [*stages.items(), ("other", timings.other_s)]:
                self._sums["offpath_stage_seconds_total", (name,)] += seconds
                buckets.add(name, seconds)
            buckets.add("total", timings.total_s)
            self._sums["offpath_batches_total", ()] += 1
            self._sums["offpath_items_total", ()] += size
            for bound in BATCH_SIZE_BOUNDS:
                if size <= bound:
                    self._sums["offpath_batch_size_bucket_total", (str(bound),)] += 1
            self._sums["offpath_batch_size_bucket_total", ("+Inf",)] += 1
            for error_type in error_types:
                self._sums["offpath_errors_total", (error_type,)] += 1

    def count_requests(self, status: int, seconds: float, number: int = 1) -> None:
        with self._lock:
            self._histograms[REQUEST_BUCKETS].add(status, seconds, number)

    def count(self, name: str, number: int = 1) -> None:
        """Adds to a counter that has no dimension but the model's name."""
        with self._lock:
            self._sums[name, ()] += number

    def write(self, has_buckets: bool = True) -> None:
        """Writes the values that changed since the last write."""
        with self._lock:
            sums, self._sums = self._sums, defaultdict(float)
            if has_buckets and self._takes_buckets:
                for name, histograms in self._histograms.items():
                    for key, le, number in histograms.read():
                        label = name_class(key) if isinstance(key, int) else str(key)
                        sums[name, (label, le)] += number
                self._histograms = make_histograms()
        for (name, values), value in sums.items():
            if value > 0:
                self._emit(name, values, value, MetricTypes.COUNTER)
        if self._read_log is not None:
            self._write_log(self._read_log())

    def _write_log(self, now: LogCounters) -> None:
        before, self._log_counters = self._log_counters, now
        for name in LOG_COUNTERS:
            difference = getattr(now, name) - getattr(before, name)
            if difference > 0:
                self._emit(f"offpath_log_{name}_total", (), difference, MetricTypes.COUNTER)
        for name, metric in LOG_GAUGES.items():
            if getattr(now, name) != getattr(before, name):
                self._emit(metric, (), getattr(now, name), MetricTypes.GAUGE)

    def _run(self) -> None:
        turns = max(1, round(BUCKETS_INTERVAL_S / self._interval_s))
        for turn in count(1):
            if self._stopped.wait(self._interval_s):
                break
            self.write(has_buckets=turn % turns == 0)
        self.write()

    def _emit(self, name: str, values: tuple[str, ...], value: float, kind: MetricTypes) -> None:
        dimensions = DIMENSIONS.get(name, ["ModelName"])
        try:
            metric = self._cache.get_metric(name, kind)
        except MetricsCacheKeyError:
            metric = self._cache.add_metric_to_cache(name, "count", dimensions, kind)
        # Rounded, because below a nanosecond Python would write a long exponent.
        metric.add_or_update(round(value, 9), [self._model_name, *values])


def make_histograms() -> dict[str, Histograms]:
    """Makes those of the stages, by their names, and those of requests, by their statuses."""
    return {STAGE_BUCKETS: Histograms(), REQUEST_BUCKETS: Histograms()}
