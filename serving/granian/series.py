"""The metrics of one worker, summed until they are reported."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

# Name, then the labels as pairs.
Key = tuple[str, tuple[tuple[str, str], ...]]


class Series:
    """Sums of counters and values of gauges since the last report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Key, float] = {}
        self._gauges: dict[Key, float] = {}

    def make(self, name: str, labels: Sequence[str], is_counter: bool) -> Metric:
        """Makes a metric of the handler (`MakeMetric` of archived_handler.py)."""
        return Metric(self, name, is_counter)

    def add(self, name: str, value: float, **labels: str) -> None:
        """Adds to a counter."""
        key = name, tuple(labels.items())
        with self._lock:
            self._counts[key] = self._counts.get(key, 0.0) + value

    def set(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge."""
        with self._lock:
            self._gauges[name, tuple(labels.items())] = value

    def take(self) -> list[tuple[Key, float, bool]]:
        """Returns each series with its value and whether it is a counter, and forgets them."""
        with self._lock:
            counts, self._counts = self._counts, {}
            gauges, self._gauges = self._gauges, {}
        taken = [(key, value, True) for key, value in counts.items()]
        return taken + [(key, value, False) for key, value in gauges.items()]

    def put_back(self, taken: Sequence[tuple[Key, float, bool]]) -> None:
        """Takes back what could not be reported."""
        for (name, labels), value, is_counter in taken:
            if is_counter:
                self.add(name, value, **dict(labels))
            else:
                self.set(name, value, **dict(labels))


class Metric:
    """One metric of the handler, for all its label values."""

    def __init__(self, series: Series, name: str, is_counter: bool) -> None:
        self._series, self._name, self._is_counter = series, name, is_counter

    def add(self, labels: Mapping[str, str], value: float) -> None:
        """Adds to a counter, or sets a gauge."""
        change = self._series.add if self._is_counter else self._series.set
        change(self._name, value, **labels)
