"""Tables by declaration: a column names a metric, a table's rows are variants and cells.

A column names a metric of `core.statistics` (or one of the run's raw rows). Cells that were not
measured are empty; a column that nobody has is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.metrics import METRICS, OK
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import LATENCY, PERCENTILES, Summary
from offpath.profiling.report.document import Table

TITLES = {metric.name: metric.title for metric in METRICS}


@dataclass(frozen=True)
class View:
    """What a run is looked at with.

    Attributes:
        baseline: variant that the others are divided by; None for no ratios.
        variants: those that are rows; limits and references are drawn, not listed.
    """

    summary: Summary
    baseline: str | None
    variants: Sequence[str]

    @property
    def run(self) -> Run:
        """The run itself."""
        return self.summary.run


Show = Callable[[View, str, Cell], str]


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        metric: whose median is shown.
        title: of the column; by default the metric's own.
        scale: the figure is multiplied by it.
        decimals: fixed; None for three significant digits.
        show: makes the text itself, instead of all that.
    """

    metric: str = ""
    title: str | None = None
    scale: float = 1.0
    decimals: int | None = None
    show: Show | None = None

    @property
    def heading(self) -> str:
        """What stands above it."""
        return (
            TITLES.get(self.metric, self.metric) if self.title is None else self.title
        )

    def text(self, view: View, variant: str, cell: Cell) -> str:
        """One cell of the table; empty where nothing was measured."""
        if self.show is not None:
            return self.show(view, variant, cell)
        value = view.summary.value(variant, cell, self.metric)
        if value is None:
            # A figure of the start stands on no cell.
            value = view.summary.value(variant, Cell(), self.metric)
        if value is None:
            return ""
        if self.decimals is None:
            return format_figure(self.scale * value)
        return f"{self.scale * value:,.{self.decimals}f}"


def show_range(metric: str) -> Show:
    """Lowest and highest of the rounds: `64-80`."""

    def show(view: View, variant: str, cell: Cell) -> str:
        spread = view.summary.spread(variant, cell, metric)
        if spread is None:
            return ""
        return f"{format_figure(spread.low)}-{format_figure(spread.high)}"

    return show


def show_ratio(metric: str) -> Show:
    """To the baseline, the median of the rounds' ratios."""

    def show(view: View, variant: str, cell: Cell) -> str:
        if view.baseline is None:
            return ""
        ratio = view.summary.ratio(variant, view.baseline, cell, metric)
        return "" if ratio is None else format_figure(ratio)

    return show


def show_failures(view: View, variant: str, cell: Cell) -> str:
    """Replies that were not 200 by status, `0` for none."""
    if view.summary.value(variant, cell, OK) is None:
        return ""
    failures = view.summary.failures(variant, cell)
    return ", ".join(f"{n} x {status}" for status, n in failures.items()) or "0"


RATE = Column("rate")


RANGE = Column(title="range", show=show_range("rate"))


RATIO = Column(title="x", show=show_ratio("rate"))


FAILED = Column(title="failed", show=show_failures)


LATENCIES = tuple(
    Column(f"{LATENCY}.p{percent:g}", f"p{percent:g} ms") for percent in PERCENTILES
)


@dataclass(frozen=True)
class TableSpec:
    """A table: a row a variant and cell.

    Attributes:
        rows_by: factors (clients, batch_size) that name a cell; columns where they differ.
        title: `{baseline}` stands for what the others are divided by.
    """

    title: str
    columns: tuple[Column, ...]
    rows_by: tuple[str, ...] = ()
    note: str = ""
    is_wide: bool = False

    def make(self, view: View, cells: Sequence[Cell]) -> Table | None:
        """The table of some cells; None where nothing of it was measured."""
        found = [
            (variant, cell)
            for cell in cells
            for variant in view.variants
            if view.summary.metrics(variant, cell)
            and any(column.text(view, variant, cell) for column in self.columns)
        ]
        factors = [
            name
            for name in self.rows_by
            if len({getattr(cell, name) for _, cell in found}) > 1
        ]
        rows = [
            [
                variant,
                *(str(getattr(cell, name)) for name in factors),
                *(column.text(view, variant, cell) for column in self.columns),
            ]
            for variant, cell in found
        ]
        first = 1 + len(factors)
        names = [
            "",
            *(name.replace("_", " ") for name in factors),
            *(column.heading for column in self.columns),
        ]
        kept = [
            n for n in range(len(names)) if n < first or any(row[n] for row in rows)
        ]
        if len(kept) == first:
            return None
        return Table(
            self.title.replace("{baseline}", view.baseline or "none"),
            [names[n] for n in kept],
            [[row[n] for n in kept] for row in rows],
            note=self.note,
            is_wide=self.is_wide,
        )
