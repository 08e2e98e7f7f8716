"""Tables and charts by declaration: an experiment names them once, every renderer draws them.

    COMPARE = Report(
        title="Servers side by side",
        tables=(TableSpec("speed", (Column("rate"), RANGE, Column("ratio"), ...)),),
        charts=(BarSpec("rate", limit=drawn_limit),),
    )

A column or chart names a metric of `core.statistics` (or one of the run's raw rows). Cells that
were not measured are empty; a column that nobody has is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from offpath.profiling.core.facts import (
    describe_host,
    describe_settings,
    describe_versions,
    describe_workload,
    format_time,
)
from offpath.profiling.core.figures import format_clients, format_figure
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import LATENCY, METRICS, OK, PERCENTILES, Summary
from offpath.profiling.report.document import (
    Bar,
    BarChart,
    Chart,
    Document,
    Histogram,
    LineChart,
    Section,
    Series,
    StackedBar,
    StackedChart,
    Table,
)

TITLES = {metric.name: metric.title for metric in METRICS}
CURVE_PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 100)


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
        from offpath.profiling.core.statistics import percentile

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


class ChartMaker(Protocol):
    """One of the specs, or what an experiment needs of its own."""

    def make(self, view: View, cells: Sequence[Cell]) -> list[Chart]:
        """The charts of one workload's cells."""


class TableMaker(Protocol):
    """A `TableSpec`, or what an experiment needs of its own."""

    def make(self, view: View, cells: Sequence[Cell]) -> Table | None:
        """The table of one workload's cells; None where nothing of it was measured."""


@dataclass(frozen=True)
class Part:
    """A headed part of a report: charts, then tables.

    Attributes:
        heading: `{workload}` stands for the workload's name.
        of_starts: made once, of what was measured outside the grid.
    """

    heading: str
    charts: tuple[ChartMaker, ...] = ()
    tables: tuple[TableMaker, ...] = ()
    note: str = ""
    of_starts: bool = False


@dataclass(frozen=True)
class Report:
    """What an experiment shows.

    Attributes:
        parts: each is made once for each workload, those of starts at the end.
        headline: the chart of each workload for `--plot`.
        is_row: whether a variant is a row of its tables; by default all are but limits.
    """

    title: str
    parts: tuple[Part, ...]
    headline: tuple[TitledSpec, ...] = ()
    is_row: Callable[[str], bool] = lambda variant: not variant.startswith("limit:")


# On the page and in Markdown: whatever METRICS has, also what no table above it names.
EVERYTHING = Part(
    "{workload}: every figure",
    tables=(
        TableSpec(
            "medians of the rounds",
            tuple(Column(metric.name) for metric in METRICS),
            ("clients", "batch_size"),
            is_wide=True,
        ),
    ),
)


def title_cell(title: str, cell: Cell, cells: Sequence[Cell]) -> str:
    """A chart's title; it names the batch size, and the clients where their number differs."""
    if cell.batch_size:
        title = f"{title}, batch {cell.batch_size}"
    numbers = {other.clients for other in cells if other.clients}
    return f"{title}, {format_clients(cell.clients)}" if len(numbers) > 1 else title


def is_ours(variant: str) -> bool:
    """Whether a variant is one of this project's: it is drawn strong."""
    return variant.startswith("offpath")


def make_document(
    run: Run, report: Report, baseline: str | None, warnings: Sequence[str]
) -> Document:
    """Everything that is shown of a run.

    Args:
        baseline: variant that the others are divided by; None for no ratios.
        warnings: from `core.doubts`.
    """
    summary = Summary(run)
    base = baseline if baseline in run.variants else None
    view = View(summary, base, [name for name in run.variants if report.is_row(name)])
    workloads = list(run.workloads) or [""]
    cells = {
        workload: [cell for cell in summary.cells() if cell.workload == workload]
        for workload in workloads
    }
    made = [
        make_section(part, view, workload, cells[workload])
        for workload in workloads
        for part in (*report.parts, EVERYTHING)
        if not part.of_starts
    ]
    made += [
        make_section(part, view, "", [Cell()])
        for part in report.parts
        if part.of_starts
    ]
    sections = [section for section in made if section]
    headline = [
        chart
        for workload in workloads
        for spec in report.headline
        for chart in replace(spec, title=workload or spec.title).make(
            view, cells[workload]
        )
    ]
    return Document(
        title=report.title,
        sections=sections,
        command=run.command,
        facts=list_facts(run),
        details=list_details(run),
        warnings=warnings,
        headline=headline,
    )


def make_section(
    part: Part, view: View, workload: str, cells: Sequence[Cell]
) -> Section | None:
    """One part of one workload; None where nothing of it was measured."""
    charts = [chart for spec in part.charts for chart in spec.make(view, cells)]
    tables = [table for spec in part.tables if (table := spec.make(view, cells))]
    heading = part.heading.replace("{workload}", workload)
    return Section(heading, [*charts, *tables], part.note) if charts or tables else None


def list_facts(run: Run) -> dict[str, str]:
    """When, where and on what."""
    return {
        "taken": format_time(run.started_at),
        "host": describe_host(run.host),
        **({"rounds": str(run.rounds)} if run.rounds > 1 else {}),
        **{name: describe_workload(it) for name, it in run.workloads.items()},
    }


def list_details(run: Run) -> dict[str, str]:
    """Versions and settings, of the run and of each variant."""
    details = {
        "versions": describe_versions(run.host),
        "settings": describe_settings(run.settings),
        **{name: describe_settings(facts) for name, facts in run.variants.items()},
    }
    return {name: text for name, text in details.items() if text}
