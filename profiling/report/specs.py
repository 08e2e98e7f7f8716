"""Charts by declaration: a spec names a metric and makes the charts of some cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offpath.profiling.core.figures import format_clients, format_figure
from offpath.profiling.core.run import Cell
from offpath.profiling.core.statistics import LATENCY, percentile
from offpath.profiling.report.columns import View, show_ratio
from offpath.profiling.report.document import (
    Bar,
    BarChart,
    Chart,
    Histogram,
    LineChart,
    Series,
    StackedBar,
    StackedChart,
)

CURVE_PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 100)


Limit = Callable[[View, Cell], "tuple[float, str] | None"]


@dataclass(frozen=True)
class BarSpec:
    """A bar a variant, with the spread of the rounds; a dashed line where there is a limit."""

    metric: str
    title: str
    unit: str
    limit: Limit | None = None

    def make(self, view: View, cells: Sequence[Cell]) -> list[Chart]:
        """A chart a cell."""
        charts: list[Chart] = []
        for cell in cells:
            bars = [bar for v in view.variants if (bar := self._bar(view, v, cell))]
            if bars:
                line = self.limit(view, cell) if self.limit else None
                title = title_cell(self.title, cell, cells)
                charts.append(BarChart(title, self.unit, bars, line))
        return charts

    def _bar(self, view: View, variant: str, cell: Cell) -> Bar | None:
        spread = view.summary.spread(variant, cell, self.metric)
        if spread is None:
            return None
        ratio = show_ratio(self.metric)(view, variant, cell)
        text = format_figure(spread.median) + (f" ({ratio} x)" if ratio else "")
        return Bar(
            variant, spread.median, text, is_ours(variant), spread.low, spread.high
        )


@dataclass(frozen=True)
class StackedSpec:
    """Parts of a whole: (metric, name) of each, a bar a variant."""

    parts: tuple[tuple[str, str], ...]
    title: str
    unit: str

    def make(self, view: View, cells: Sequence[Cell]) -> list[Chart]:
        """A chart a cell."""
        charts: list[Chart] = []
        for cell in cells:
            bars = [bar for v in view.variants if (bar := self._bar(view, v, cell))]
            if bars:
                title = title_cell(self.title, cell, cells)
                charts.append(StackedChart(title, self.unit, bars))
        return charts

    def _bar(self, view: View, variant: str, cell: Cell) -> StackedBar | None:
        found = [
            (name, value)
            for metric, name in self.parts
            if (value := view.summary.value(variant, cell, metric)) is not None
        ]
        whole = format_figure(sum(value for _, value in found))
        return StackedBar(variant, found, f"{whole} {self.unit}") if found else None


@dataclass(frozen=True)
class LineSpec:
    """A line a variant over one factor (`clients`, `batch_size`)."""

    metric: str
    over: str
    title: str
    y_label: str
    x_label: str
    log_x: bool = True
    log_y: bool = False

    def make(self, view: View, cells: Sequence[Cell]) -> list[Chart]:
        """One chart of all cells."""
        series = []
        for variant in view.variants:
            points = [
                (float(getattr(cell, self.over)), value)
                for cell in cells
                if (value := view.summary.value(variant, cell, self.metric)) is not None
            ]
            if points:
                series.append(Series(variant, sorted(points), is_ours(variant)))
        if not series:
            return []
        return [
            LineChart(
                self.title, self.x_label, self.y_label, series, self.log_x, self.log_y
            )
        ]


@dataclass(frozen=True)
class CurveSpec:
    """How long clients wait: the share of replies within so many milliseconds, a line a variant."""

    title: str = "How long clients wait"
    metric: str = LATENCY

    def make(self, view: View, cells: Sequence[Cell]) -> list[Chart]:
        """A chart a cell."""
        charts: list[Chart] = []
        for cell in cells:
            series = [
                Series(
                    variant,
                    [(percentile(values, p), p) for p in CURVE_PERCENTS],
                    is_ours(variant),
                )
                for variant in view.variants
                if (values := view.summary.values(variant, cell, self.metric))
            ]
            if series:
                title = title_cell(self.title, cell, cells)
                charts.append(
                    LineChart(title, "ms", "% of replies within", series, log_x=True)
                )
        return charts


@dataclass(frozen=True)
class HistogramSpec:
    """Values a request, a histogram a variant."""

    metric: str = LATENCY
    x_label: str = "ms"

    def make(self, view: View, cells: Sequence[Cell]) -> list[Chart]:
        """A chart a variant and cell."""
        return [
            Histogram(variant, self.x_label, values)
            for cell in cells
            for variant in view.variants
            if (values := view.summary.values(variant, cell, self.metric))
        ]


TitledSpec = BarSpec | StackedSpec | LineSpec | CurveSpec


def title_cell(title: str, cell: Cell, cells: Sequence[Cell]) -> str:
    """A chart's title; it names the batch size, and the clients where their number differs."""
    if cell.batch_size:
        title = f"{title}, batch {cell.batch_size}"
    numbers = {other.clients for other in cells if other.clients}
    return f"{title}, {format_clients(cell.clients)}" if len(numbers) > 1 else title


def is_ours(variant: str) -> bool:
    """Whether a variant is one of this project's: it is drawn strong."""
    return variant.startswith("offpath")
