"""The handler's metrics on Ray's own metrics page, with the deployment's and replica's names."""

# What it imports is installed where Ray is.
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ray.serve.metrics import Counter, Gauge


class RaySeries:
    """A metric on Ray's own metrics page."""

    def __init__(self, name: str, labels: Sequence[str], is_counter: bool) -> None:
        # Ray adds `_total` to a counter's name, and `ray_` before it.
        make = Counter if is_counter else Gauge
        self._metric = make(
            name.removesuffix("_total") if is_counter else name,
            description=f"{name}, see docs/reference.md",
            tag_keys=tuple(labels),
        )
        self._is_counter = is_counter

    def add(self, labels: Mapping[str, str], value: float) -> None:
        """Adds to a counter, or sets a gauge."""
        if self._is_counter:
            # Ray refuses a 0, by which other servers show a counter from the start.
            if value > 0:
                self._metric.inc(value, tags=dict(labels))
        else:
            self._metric.set(value, tags=dict(labels))
