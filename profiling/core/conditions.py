"""Conditions on a run's figures, for CI: `p99_ms>100`, `failed>0`, `offpath:rate<200`.

A condition is a metric, a comparison and a number. The metric has its name in `metrics.METRICS`, or
is a percentile of the latency such as `p50_ms`. Its figure is the median of the rounds, in each
cell of each variant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from offpath.profiling.core.figures import format_clients, format_figure
from offpath.profiling.core.limits import is_limit
from offpath.profiling.core.metrics import METRICS
from offpath.profiling.core.run import Cell
from offpath.profiling.core.statistics import LATENCY, PERCENTILES, Summary
from offpath.profiling.core.threshold import Threshold, parse_threshold

# Name in a condition -> name in the summary.
NAMES = {
    **{f"p{percent:g}_ms": f"{LATENCY}.p{percent:g}" for percent in PERCENTILES},
    "mean_ms": f"{LATENCY}.mean",
    **{metric.name: metric.name for metric in METRICS},
}


@dataclass(frozen=True)
class Condition(Threshold):
    """A threshold for the figures of a run; without a variant, of all variants but the limits."""

    def find_met(self, summary: Summary) -> Iterator[str]:
        """Describes each place where the condition holds, or where its figure is missing.

        A missing figure counts, because nothing was proved there.

        Raises:
            ValueError: the run has no such variant.
        """
        names = [name for name in summary.run.variants if not is_limit(name)]
        if self.variant is not None and self.variant not in names:
            raise ValueError(
                f"{self.text!r}: no variant {self.variant!r}; there are: {', '.join(names)}"
            )
        for name in names if self.variant is None else [self.variant]:
            cells = [cell for cell in summary.cells() if summary.metrics(name, cell)]
            for cell in cells or [Cell()]:
                if (said := self._judge(summary, name, cell)) is not None:
                    yield f"{self.text}: {said}"

    def _judge(self, summary: Summary, variant: str, cell: Cell) -> str | None:
        value = summary.value(variant, cell, self.metric)
        if value is None:
            # The figures of a start belong to no cell.
            value = summary.value(variant, Cell(), self.metric)
        where = f"{variant}, {cell.workload}" if cell.workload else variant
        if cell.clients:
            where += f", {format_clients(cell.clients)}"
        if value is None:
            return f"not measured ({where})"
        return f"{format_figure(value)} ({where})" if self.is_met(value) else None


def parse_condition(text: str) -> Condition:
    found = parse_threshold(text, NAMES, "p99_ms>100")
    return Condition(text, found.variant, NAMES[found.metric], found.sign, found.bound)
