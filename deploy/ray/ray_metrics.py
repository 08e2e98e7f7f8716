"""Publishes the handler's metrics on Ray's metrics page, labelled with deployment and replica."""

# Its imports exist only where Ray is installed.
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ray.serve.metrics import Counter, Gauge


class RayMetric:
    def __init__(self, name: str, labels: Sequence[str], is_counter: bool) -> None:
        # Ray appends `_total` to the name of a counter, and prepends `ray_`.
        make = Counter if is_counter else Gauge
        self._metric = make(
            name.removesuffix("_total") if is_counter else name,
            description=f"{name}, see docs/reference.md",
            tag_keys=tuple(labels),
        )
        self._is_counter = is_counter

    def add(self, labels: Mapping[str, str], value: float) -> None:
        if self._is_counter:
            # Ray refuses the 0 that makes a counter visible from the start elsewhere.
            if value > 0:
                self._metric.inc(value, tags=dict(labels))
        else:
            self._metric.set(value, tags=dict(labels))
