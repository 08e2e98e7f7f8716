"""Counts durations in the buckets of Prometheus histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator
from itertools import accumulate

# Upper bounds in seconds. Alerts and dashboards can ask for these alone, so they never change.
BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
# Values of the label `le`, which PromQL's histogram_quantile reads.
LE = (*(f"{bound_s:g}" for bound_s in BOUNDS_S), "+Inf")
REQUEST_BUCKETS = "offpath_request_seconds_bucket_total"
STAGE_BUCKETS = "offpath_stage_seconds_bucket_total"


class Histograms:
    """Histograms by a key, such as a metric's name and labels."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, list[int]] = {}

    def add(self, key: Hashable, seconds: float, number: int = 1) -> None:
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * len(LE)
        counts[bisect_left(BOUNDS_S, seconds)] += number

    def read(self) -> Iterator[tuple[Hashable, str, int]]:
        """Yields each key, each value of `le`, and the events of at most that duration."""
        for key, counts in self._counts.items():
            for le, count in zip(LE, accumulate(counts)):
                yield key, le, count


def name_class(status: int) -> str:
    """Returns the label of a status: its class, such as 2xx.

    The 499 of a client that left is a label of its own: neither the client nor the server is to
    blame, but the client may have left because the server was slow.
    """
    return "499" if status == 499 else f"{status // 100}xx"
