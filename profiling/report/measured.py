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
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.limits import is_limit
from offpath.profiling.core.metrics import METRICS, OK
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import (
    LATENCY,
    PERCENTILES,
    Spread,
    Summary,
)
from offpath.profiling.report.charts import (
    Bar,
    BarChart,
    Chart,
    LineChart,
    Series,
    StackedBar,
    StackedChart,
)
from offpath.profiling.report.document import Document, Section, format_table

TITLES = {metric.name: metric.title for metric in METRICS}


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
        return self.summary.run

    @property
    def variants(self) -> list[str]:
        """The variants that are rows and bars: limits are drawn as lines instead."""
        return [name for name in self.run.variants if not is_limit(name)]

    @property
    def has_several_clients(self) -> bool:
        """True if the number of clients was varied, so that charts are drawn against it."""
        return len({cell.clients for cell in self.cells if cell.clients}) > 1

    def list_measured(self) -> Iterator[Measured]:
        for cell in self.cells:
            for variant in self.variants:
                if self.summary.metrics(variant, cell):
                    yield Measured(self, variant, cell)


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
        return self.view.summary.spread(self.variant, self.cell, metric)

    def format_ratio(self, metric: str) -> str:
        """Returns the median of the rounds' ratios to the baseline, as text."""
        if self.view.baseline is None:
            return ""
        ratio = self.view.summary.ratio(self.variant, self.view.baseline, self.cell, metric)
        return "" if ratio is None else format_figure(ratio)


class Column(NamedTuple):
    """One column of a table; `text` is empty where nothing was measured."""

    title: str
    text: Callable[[Measured], str]


def figure_column(metric: str, title: str | None = None, decimals: int | None = None) -> Column:
    """Declares a column with the median of a metric over the rounds.

    Args:
        title: None for the metric's own.
        decimals: None for three significant digits.
    """

    def show(row: Measured) -> str:
        value = row.value(metric)
        if value is None:
            return ""
        return format_figure(value) if decimals is None else f"{value:,.{decimals}f}"

    return Column(TITLES.get(metric, metric) if title is None else title, show)


def range_column(metric: str) -> Column:
    """Declares a column with the lowest and the highest of the rounds: `64-80`."""

    def show(row: Measured) -> str:
        found = row.spread(metric)
        if found is None:
            return ""
        return f"{format_figure(found.low)}-{format_figure(found.high)}"

    return Column("range", show)


def ratio_column(metric: str) -> Column:
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


def figure_table(view: View, title: str, columns: Sequence[Column]) -> str:
    measured = list(view.list_measured())
    rows = [(row, [column.text(row) for column in columns]) for row in measured]
    rows = [(row, texts) for row, texts in rows if any(texts)]
    shown, titles = [[row.variant, *texts] for row, texts in rows], [c.title for c in columns]
    if view.has_several_clients:
        titles = ["clients", *titles]
        shown = [[row.variant, str(row.cell.clients), *texts] for row, texts in rows]
    return format_table(["", *titles], shown, title=title)


def draw_bars(
    view: View, metric: str, title: str, unit: str, limit: tuple[float, str] | None = None
) -> list[Chart]:
    """Draws a bar for each variant, with the spread of the rounds.

    Args:
        limit: value and name of a dashed line.
    """
    bars = []
    for row in view.list_measured():
        if (found := row.spread(metric)) is not None:
            times = row.format_ratio(metric)
            text = format_figure(found.median) + (f" ({times} x)" if times else "")
            strong = is_ours(row.variant)
            bars.append(Bar(row.variant, found.median, text, strong, found.low, found.high))
    return [BarChart(title, unit, bars, limit)] if bars else []


def draw_stacks(view: View, parts: Sequence[tuple[str, str]], title: str, unit: str) -> list[Chart]:
    bars = []
    for row in view.list_measured():
        values = [(name, row.value(metric)) for metric, name in parts]
        found = [(name, value) for name, value in values if value is not None]
        if found:
            whole = format_figure(sum(value for _, value in found))
            bars.append(StackedBar(row.variant, found, f"{whole} {unit}"))
    return [StackedChart(title, unit, bars)] if bars else []


def draw_lines(
    view: View,
    metric: str,
    title: str,
    unit: str,
    log_y: bool = False,
    bound: tuple[float, str] | None = None,
) -> list[Chart]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in view.list_measured():
        if (value := row.value(metric)) is not None:
            points.setdefault(row.variant, []).append((float(row.cell.clients), value))
    series = [
        Series(variant, sorted(points[variant]), is_ours(variant))
        for variant in view.variants
        if variant in points
    ]
    if not series:
        return []
    return [LineChart(title, "clients", unit, series, log_x=True, log_y=log_y, bound=bound)]


def is_ours(variant: str) -> bool:
    """Tells whether a variant is one of this project's, which are drawn strong."""
    return variant.startswith("offpath")


def show_everything(view: View) -> Section:
    """Shows all metrics, also those that no other table names: on the page and in Markdown."""
    columns = [figure_column(metric.name) for metric in METRICS]
    table = figure_table(view, "medians of the rounds", columns)
    return Section("every figure", table, is_wide=True)


def make_run_document(
    run: Run,
    title: str,
    show: Callable[[View], Sequence[Section]],
    baseline: str | None = None,
    warnings: Sequence[str] = (),
    show_whole: Callable[[View], Sequence[Section]] = lambda view: (),
) -> Document:
    """Makes the document of a run. The first chart of each workload is its headline.

    Args:
        show: makes the sections of one workload.
        baseline: variant that the others are divided by; None for no ratios.
        warnings: reasons to doubt the figures, from `core.doubts`.
        show_whole: makes sections of the whole run, shown once after the workloads.
    """
    summary = Summary(run)
    base = baseline if baseline in run.variants else None
    sections, headline = [], []
    for path, name in name_workloads(run).items():
        view = View(summary, [c for c in summary.cells() if c.workload == path], base)
        shown = [*show(view), show_everything(view)]
        sections += [replace(one, heading=f"{name}: {one.heading}") for one in shown]
        headline += [replace(one, title=f"{name}: {one.title}") for one in shown[0].charts[:1]]
    sections += show_whole(View(summary, [Cell()], base))
    return describe_run(run, Document(title, sections, warnings=warnings, headline=headline))


def name_workloads(run: Run) -> dict[str, str]:
    """Returns workload -> heading: a folder's own name where it is unambiguous, not its path."""
    names = {path: Path(path).name or path for path in run.workloads}
    counts = Counter(names.values())
    return {path: n if counts[n] == 1 else path for path, n in names.items()}


def describe_run(run: Run, document: Document) -> Document:
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
