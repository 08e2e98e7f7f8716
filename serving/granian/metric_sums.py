"""The metrics of one worker, summed until they are reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

# Name, labels as pairs, and whether it is a counter.
Key = tuple[str, tuple[tuple[str, str], ...], bool]


class MetricSums:
    """Sums of counters and values of gauges since the last report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Key, float] = {}

    def add(self, name: str, value: float, is_counter: bool = True, **labels: str) -> None:
        """Adds to a counter, or sets a gauge."""
        key = name, tuple(labels.items()), is_counter
        with self._lock:
            before = self._values.get(key, 0.0) if is_counter else 0.0
            self._values[key] = before + value

    def report(self, send: Callable[[list[tuple[Key, float]]], bool]) -> None:
        """Sends all values and forgets them; keeps them if `send` returns False."""
        with self._lock:
            if self._values and send(list(self._values.items())):
                self._values = {}


class SummedMetric:
    """One metric of the handler, for all its label values (`ServerMetric`)."""

    def __init__(
        self, sums: MetricSums, name: str, labels: Sequence[str], is_counter: bool
    ) -> None:
        self._sums, self._name, self._is_counter = sums, name, is_counter

    def add(self, labels: Mapping[str, str], value: float) -> None:
        self._sums.add(self._name, value, self._is_counter, **labels)
