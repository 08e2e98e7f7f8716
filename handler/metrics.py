"""Sums the timings and counts of batches, and publishes the differences about once per second.

TorchServe reads metrics from the worker's stdout, one line each; so a value per request or per
batch would be dear. A SIGKILL loses the counts of the current second. serving/conf/metrics.yaml
declares the names and labels to TorchServe.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count

from offpath.handler.contract import Publish
from offpath.handler.latency import (
    REQUEST_BUCKETS,
    STAGE_BUCKETS,
    Histograms,
    name_class,
)
from offpath.handler.prediction_log.prediction_log import LogCounters
from offpath.handler.stages import BatchTimings

# Buckets are many lines, so they are written less often than sums.
BUCKETS_INTERVAL_S = 5.0
BATCH_SIZE_BOUNDS = (1, 2, 4, 8, 16, 32, 64)
DECODED_BY_CPU = "offpath_gpu_decode_out_of_memory_total"
BATCHES = ("offpath_batches_total", "offpath_items_total")
MODEL_FAILURES = ("offpath_out_of_memory_total", "offpath_sick_workers_total")
LOG_COUNTERS = ("appended", "shipped", "dropped", "retries")
# LogCounters' attribute -> metric.
LOG_GAUGES = {
    "spool_bytes": "offpath_log_spool_bytes",
    "oldest_unshipped_age_s": "offpath_log_oldest_unshipped_seconds",
    "last_success_unix_s": "offpath_log_last_success_timestamp_seconds",
}

# A series is a metric name and the values of its labels after ModelName.
MetricKey = tuple[str, tuple[str, ...]]
LABELS = {
    "offpath_stage_seconds_total": ("Stage",),
    "offpath_batch_size_bucket_total": ("Le",),
    "offpath_errors_total": ("Type",),
    STAGE_BUCKETS: ("Stage", "le"),
    REQUEST_BUCKETS: ("status", "le"),
}


class Metrics:
    """Sums the reports of batches and hands the differences to the server.

    Args:
        read_log: returns the prediction log's counters; called before each write.
    """

    def __init__(
        self,
        publish: Publish,
        model_name: str,
        interval_s: float,
        read_log: Callable[[], LogCounters] | None = None,
    ) -> None:
        self._publish = publish
        self._model_name = model_name
        self._interval_s = interval_s
        self._read_log = read_log
        # No age is -1, so the first write always has the age: until then TorchServe shows the age
        # that a dead worker has left.
        self._log_counters = LogCounters(oldest_unshipped_age_s=-1.0)
        self._sums: dict[MetricKey, float] = defaultdict(float)
        self._histograms = make_histograms()
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
            **dict.fromkeys((*BATCHES, *MODEL_FAILURES, DECODED_BY_CPU), 0),
        }
        if self._read_log is not None:
            counts |= {f"offpath_log_{name}_total": 0 for name in LOG_COUNTERS}
        for name, count in counts.items():
            self._emit(name, (), count, True)
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
            if has_buckets:
                for name, histograms in self._histograms.items():
                    for key, le, number in histograms.read():
                        label = name_class(key) if isinstance(key, int) else str(key)
                        sums[name, (label, le)] += number
                self._histograms = make_histograms()
        for (name, values), value in sums.items():
            if value > 0:
                self._emit(name, values, value, True)
        if self._read_log is not None:
            self._write_log(self._read_log())

    def _write_log(self, now: LogCounters) -> None:
        before, self._log_counters = self._log_counters, now
        for name in LOG_COUNTERS:
            difference = getattr(now, name) - getattr(before, name)
            if difference > 0:
                self._emit(f"offpath_log_{name}_total", (), difference, True)
        for name, metric in LOG_GAUGES.items():
            if getattr(now, name) != getattr(before, name):
                self._emit(metric, (), getattr(now, name), False)

    def _run(self) -> None:
        turns = max(1, round(BUCKETS_INTERVAL_S / self._interval_s))
        for turn in count(1):
            if self._stopped.wait(self._interval_s):
                break
            self.write(has_buckets=turn % turns == 0)
        self.write()

    def _emit(self, name: str, values: tuple[str, ...], value: float, is_counter: bool) -> None:
        labels = dict(zip(LABELS.get(name, ()), values))
        # Rounded, because below a nanosecond Python would write a long exponent.
        self._publish(name, round(value, 9), is_counter, {"ModelName": self._model_name, **labels})


def make_histograms() -> dict[str, Histograms]:
    """Makes those of the stages, by their names, and those of requests, by their statuses."""
    return {STAGE_BUCKETS: Histograms(), REQUEST_BUCKETS: Histograms()}
