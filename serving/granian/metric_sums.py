"""The metrics of one worker, summed until they are reported."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping

# The kernel refuses a message of more than 208 kB, and one series may have 126 kB.
MAX_PART_BYTES = 1 << 15
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

    def publish(self, name: str, value: float, is_counter: bool, labels: Mapping[str, str]) -> None:
        """Takes a metric of a classifier (`Publish` in handler/contract.py)."""
        self.add(name, value, is_counter, **labels)

    def report(self, send: Callable[[list[tuple[Key, float]]], bool]) -> None:
        """Sends all values in parts, and forgets each part for which `send` returns True."""
        with self._lock:
            while self._values:
                part, size = [], 0
                for one in self._values.items():
                    part.append(one)
                    size += len(json.dumps(one))
                    if size > MAX_PART_BYTES:
                        break
                if not send(part):
                    return
                for key, _ in part:
                    del self._values[key]
