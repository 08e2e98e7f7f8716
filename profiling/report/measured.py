"""Tables and charts of a run that need only the names of metrics.

A metric is one of `core.statistics`, or one of the run's raw rows. `compare_report.py` has examples
of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from offpath.profiling.core.facts import (
    describe_host,
    describe_settings,
    describe_versions,
    describe_workload,
    format_time,
)
from offpath.profiling.core.figures import format_clients, format_figure
from offpath.profiling.core.limits import is_limit
from offpath.profiling.core.metrics import METRICS, OK
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import (
    LATENCY,
    PERCENTILES,
    Spread,
    Summary,
    percentile,
)
from offpath.profiling.report.charts import (
    Bar,
    BarChart,
    LineChart,
    Series,
    StackedBar,
    StackedChart,
)
from offpath.profiling.report.declared import (
    Column,
    Draw,
    Part,
    Report,
    TableSpec,
    Text,
    make_document,
)
from offpath.profiling.report.document import Document

TITLES = {metric.name: metric.title for metric in METRICS}
CURVE_PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 100)


@dataclass(frozen=True)
class View:
    """The figures of a run on one workload.

    Attributes:
        cells: where on the grid it was measured; the only cell of a view on the starts is `Cell()`.
        baseline: variant that the others are divided by; None for no ratios.
    """

    summary: Summary
    cells: Sequence[Cell]
    baseline: str | None = None

    @property
    def run(self) -> Run:
        """The run itself."""
        return self.summary.run

    @property
    def variants(self) -> list[str]:
        """The variants that are rows and bars: limits are drawn as lines instead."""
        return [name for name in self.run.variants if not is_limit(name)]

    def list_measured(self) -> Iterator[Measured]:
        """Lists everything that was measured, cell by cell."""
        return (row for cell in self.cells for row in self.list_variants(cell))

    def list_variants(self, cell: Cell) -> Iterator[Measured]:
        """Lists the variants that were measured in one cell."""
        for variant in self.variants:
            if self.summary.metrics(variant, cell):
                yield Measured(self, variant, cell)

    def name_chart(self, title: str, cell: Cell) -> str:
        """Adds the number of clients to a chart's title where the charts differ by it."""
        if len({other.clients for other in self.cells if other.clients}) > 1:
            return f"{title}, {format_clients(cell.clients)}"
        return title


class Measured(NamedTuple):
    """One variant in one cell: a row of a table, a bar of a chart."""

    view: View
    variant: str
    cell: Cell

    def value(self, metric: str) -> float | None:
        """Returns the median over the rounds; a figure of the start belongs to every cell."""
        summary = self.view.summary
        value = summary.value(self.variant, self.cell, metric)
        return summary.value(self.variant, Cell(), metric) if value is None else value

    def spread(self, metric: str) -> Spread | None:
        """Returns median, lowest and highest value over the rounds."""
        return self.view.summary.spread(self.variant, self.cell, metric)

    def format_ratio(self, metric: str) -> str:
        """Returns the median of the rounds' ratios to the baseline, as text."""
        if self.view.baseline is None:
            return ""
        ratio = self.view.summary.ratio(self.variant, self.view.baseline, self.cell, metric)
        return "" if ratio is None else format_figure(ratio)


def figure_column(
    metric: str,
    title: str | None = None,
    scale: float = 1.0,
    decimals: int | None = None,
) -> Column[Measured]:
    """Declares a column with the median of a metric over the rounds.

    Args:
        title: None for the metric's own.
        scale: factor of the figure.
        decimals: None for three significant digits.
    """

    def show(row: Measured) -> str:
        value = row.value(metric)
        if value is None:
            return ""
        if decimals is None:
            return format_figure(scale * value)
        return f"{scale * value:,.{decimals}f}"

    return Column(TITLES.get(metric, metric) if title is None else title, show)


def range_column(metric: str) -> Column[Measured]:
    """Declares a column with the lowest and the highest of the rounds: `64-80`."""

    def show(row: Measured) -> str:
        found = row.spread(metric)
        if found is None:
            return ""
        return f"{format_figure(found.low)}-{format_figure(found.high)}"

    return Column("range", show)


def ratio_column(metric: str) -> Column[Measured]:
    """Declares a column with the ratio to the baseline."""
    return Column("x", lambda row: row.format_ratio(metric))


def format_failures(row: Measured) -> str:
    """Returns the replies other than 200 by status, `0` for none."""
    if row.view.summary.value(row.variant, row.cell, OK) is None:
        return ""
    failures = row.view.summary.failures(row.variant, row.cell)
    return ", ".join(f"{n} x {status}" for status, n in failures.items()) or "0"


RATE, FAILED = figure_column("rate"), Column("failed", format_failures)
LATENCIES = tuple(
    figure_column(f"{LATENCY}.p{percent:g}", f"p{percent:g} ms") for percent in PERCENTILES
)
ROW = (
    Column[Measured]("", lambda row: row.variant),
    Column[Measured]("clients", lambda row: str(row.cell.clients), is_factor=True),
    Column[Measured]("batch size", lambda row: str(row.cell.batch_size), is_factor=True),
)


def figure_table(
    title: Text[View], columns: Sequence[Column[Measured]]
) -> TableSpec[View, Measured]:
    """Declares a table with a row for each variant and cell."""
    return TableSpec(title, View.list_measured, (*ROW, *columns))


def bar_charts(
    metric: str,
    title: str,
    unit: str,
    limit: Callable[[View, Cell], tuple[float, str] | None] = lambda view, cell: None,
) -> Draw[View]:
    """Declares a bar chart for each cell: a bar for each variant, with the spread of the rounds.

    Args:
        limit: returns value and name of a dashed line, or None.
    """

    def draw(view: View) -> Iterator[BarChart]:
        for cell in view.cells:
            drawn = [
                Bar(
                    row.variant,
                    found.median,
                    format_figure(found.median)
                    + (f" ({times} x)" if (times := row.format_ratio(metric)) else ""),
                    is_ours(row.variant),
                    found.low,
                    found.high,
                )
                for row in view.list_variants(cell)
                if (found := row.spread(metric)) is not None
            ]
            if drawn:
                name = view.name_chart(title, cell)
                yield BarChart(name, unit, drawn, limit(view, cell))

    return draw


def stacked_charts(parts: Sequence[tuple[str, str]], title: str, unit: str) -> Draw[View]:
    """Declares a chart for each cell: a bar for each variant, stacked of (metric, name) parts."""

    def draw(view: View) -> Iterator[StackedChart]:
        for cell in view.cells:
            drawn = []
            for row in view.list_variants(cell):
                found = [
                    (name, value)
                    for metric, name in parts
                    if (value := row.value(metric)) is not None
                ]
                if found:
                    whole = format_figure(sum(value for _, value in found))
                    drawn.append(StackedBar(row.variant, found, f"{whole} {unit}"))
            if drawn:
                yield StackedChart(view.name_chart(title, cell), unit, drawn)

    return draw


def line_chart(metric: str, title: str, unit: str, log_y: bool = False) -> Draw[View]:
    """Declares a line chart: a line for each variant against the number of clients."""

    def draw(view: View) -> Iterator[LineChart]:
        points: dict[str, list[tuple[float, float]]] = {}
        for row in view.list_measured():
            if (value := row.value(metric)) is not None:
                point = (float(row.cell.clients), value)
                points.setdefault(row.variant, []).append(point)
        series = [
            Series(variant, sorted(points[variant]), is_ours(variant))
            for variant in view.variants
            if variant in points
        ]
        if series:
            yield LineChart(title, "clients", unit, series, log_x=True, log_y=log_y)

    return draw


def draw_latencies(view: View) -> Iterator[LineChart]:
    """Draws for each cell the share of replies that came within a time, a line for each variant."""
    for cell in view.cells:
        series = [
            Series(
                variant,
                [(percentile(values, p), p) for p in CURVE_PERCENTS],
                is_ours(variant),
            )
            for variant in view.variants
            if (values := view.summary.values(variant, cell))
        ]
        if series:
            title = view.name_chart("How long clients wait", cell)
            yield LineChart(title, "ms", "% of replies within", series, log_x=True)


def is_ours(variant: str) -> bool:
    """Tells whether a variant is one of this project's, which are drawn strong."""
    return variant.startswith("offpath")


# On the page and in Markdown: also metrics that no table of the report names.
EVERYTHING: Part[View] = Part(
    "every figure",
    (
        figure_table(
            "medians of the rounds",
            [figure_column(m.name) for m in METRICS],
        ),
    ),
    is_wide=True,
)


def make_run_document(
    run: Run,
    report: Report[View],
    baseline: str | None = None,
    warnings: Sequence[str] = (),
    whole: Sequence[Part[View]] = (),
) -> Document:
    """Makes the document of a run.

    Args:
        report: shown for each workload.
        baseline: variant that the others are divided by; None for no ratios.
        warnings: reasons to doubt the figures, from `core.doubts`.
        whole: parts of the whole run, shown once after the workloads: starts and the like.
    """
    summary = Summary(run)
    base = baseline if baseline in run.variants else None
    views = {
        name: View(summary, [c for c in summary.cells() if c.workload == path], base)
        for path, name in name_workloads(run).items()
    }
    whole_view = View(summary, [Cell()], base)
    parts = replace(report, parts=(*report.parts, EVERYTHING))
    made = make_document(parts, views, warnings)
    sections = [section for part in whole for section in part.make("", whole_view)]
    return describe_run(run, replace(made, sections=[*made.sections, *sections]))


def name_workloads(run: Run) -> dict[str, str]:
    """Returns workload -> heading: a folder's own name where it is unambiguous, not its path."""
    names = {path: Path(path).name or path for path in run.workloads}
    counts = Counter(names.values())
    return {path: n if counts[n] == 1 else path for path, n in names.items()}


def describe_run(run: Run, document: Document) -> Document:
    """Adds a run's command line, facts and details to a document."""
    details = {
        "versions": describe_versions(run.host),
        "settings": describe_settings(run.settings),
        **{name: describe_settings(facts) for name, facts in run.variants.items()},
    }
    facts = {
        "taken": format_time(run.started_at),
        "host": describe_host(run.host),
        **({"rounds": str(run.rounds)} if run.rounds > 1 else {}),
        **{name: describe_workload(it) for name, it in run.workloads.items()},
    }
    return replace(
        document,
        command=run.command,
        facts=facts,
        details={name: text for name, text in details.items() if text},
    )
