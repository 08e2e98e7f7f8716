"""The report of `bench compare`: rates with the limits, latencies, CPU, memory, starts.

Tables and charts need only the names of metrics: one of `core.statistics`, or one of the run's raw
rows. Charts are bars, or lines against the number of clients where that was varied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import (
    LATENCY,
    METRICS,
    OK,
    PERCENTILES,
    Spread,
    Summary,
    is_limit,
)
from offpath.profiling.report.charts import (
    Bar,
    BarChart,
    Chart,
    LineChart,
    Series,
)
from offpath.profiling.report.document import Document, Section, describe_run, format_table

BASELINE = "torchserve-stock"
CPU = (
    ("cpu_ms.frontend", "front end"),
    ("cpu_ms.workers", "workers"),
    ("cpu_ms.generator", "load"),
)
# What may be varied in a run -> its heading.
FACTORS = {"clients": "clients", "rate": "due /s"}
TITLES = {metric.name: metric.title for metric in METRICS}


@dataclass(frozen=True)
class ReportView:
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
    def factor(self) -> str | None:
        """Returns the factor that was varied, `clients` or `rate`; charts are drawn against it."""
        varied = [f for f in FACTORS if len({getattr(cell, f) for cell in self.cells} - {0}) > 1]
        return varied[-1] if varied else None

    def list_measured(self) -> Iterator[Measured]:
        for cell in self.cells:
            for variant in self.variants:
                if self.summary.metrics(variant, cell):
                    yield Measured(self, variant, cell)


class Measured(NamedTuple):
    """One variant in one cell: a row of a table, a bar of a chart."""

    view: ReportView
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
SPEED_COLUMNS = (
    *(RATE, range_column("rate"), ratio_column("rate")),
    figure_column("decode_percent", decimals=0),
    figure_column("answer_difference", "diff", decimals=4),
    FAILED,
)
# In the closed loop it follows from the rate.
LOAD_CORES = figure_column("load_cores", decimals=2)
COST_COLUMNS = (
    *(figure_column(metric, decimals=2) for metric, _ in CPU),
    Column("load cores", lambda row: LOAD_CORES.text(row) if row.cell.rate else ""),
    figure_column("cpu_ms.nginx", decimals=2),
    figure_column("cpu_ms", decimals=2),
    figure_column("rss_mb", "RSS", decimals=0),
    figure_column("pss_mb", "PSS", decimals=0),
    figure_column("gpu_percent", decimals=0),
    figure_column("jpeg_percent", decimals=0),
    figure_column("gpu_mb", decimals=0),
)
EVERY_COLUMN = tuple(figure_column(metric.name) for metric in METRICS)
READY_COLUMNS = (figure_column("ready_s", "s"), range_column("ready_s"), ratio_column("ready_s"))


def figure_table(view: ReportView, title: str, columns: Sequence[Column]) -> str:
    measured = list(view.list_measured())
    rows = [(row, [column.text(row) for column in columns]) for row in measured]
    rows = [(row, texts) for row, texts in rows if any(texts)]
    shown, titles = [[row.variant, *texts] for row, texts in rows], [c.title for c in columns]
    if view.factor:
        titles = [FACTORS[view.factor], *titles]
        shown = [[r.variant, f"{getattr(r.cell, view.factor):g}", *texts] for r, texts in rows]
    return format_table(["", *titles], shown, title=title)


def draw_bars(
    view: ReportView, metric: str, title: str, unit: str, limit: tuple[float, str] | None = None
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


def draw_stacks(
    view: ReportView, parts: Sequence[tuple[str, str]], title: str, unit: str
) -> list[Chart]:
    bars = []
    for row in view.list_measured():
        values = {name: row.value(metric) for metric, name in parts}
        if found := {name: value for name, value in values.items() if value is not None}:
            whole = sum(found.values())
            bars.append(Bar(row.variant, whole, f"{format_figure(whole)} {unit}", parts=found))
    return [BarChart(title, unit, bars)] if bars else []


def draw_lines(
    view: ReportView,
    metric: str,
    title: str,
    unit: str,
    log_y: bool = False,
    bound: tuple[float, str] | None = None,
) -> list[Chart]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in view.list_measured():
        if (value := row.value(metric)) is not None:
            points.setdefault(row.variant, []).append(
                (float(getattr(row.cell, view.factor or "clients")), value)
            )
    series = [
        Series(variant, sorted(points[variant]), is_ours(variant))
        for variant in view.variants
        if variant in points
    ]
    if not series:
        return []
    return [LineChart(title, FACTORS[view.factor or "clients"], unit, series, log_y, bound)]


def is_ours(variant: str) -> bool:
    """Tells whether a variant is one of this project's, which are drawn strong."""
    return variant.startswith("offpath")


def document_of(run: Run, baseline: str | None) -> Document:
    """Makes the document of a run. The first chart of each workload is its headline."""
    summary, chosen = Summary(run), baseline or BASELINE
    base = chosen if chosen in run.variants else None
    sections, headline = [], []
    for path, name in name_workloads(run).items():
        view = ReportView(summary, [c for c in summary.cells() if c.workload == path], base)
        shown = show_workload(view)
        sections += [replace(one, heading=f"{name}: {one.heading}") for one in shown]
        headline += [replace(one, title=f"{name}: {one.title}") for one in shown[0].charts[:1]]
    sections += show_run(ReportView(summary, [Cell()], base))
    doubts, title = find_doubts(run), "Servers side by side"
    return describe_run(run, Document(title, sections, warnings=doubts, headline=headline))


def name_workloads(run: Run) -> dict[str, str]:
    """Returns workload -> heading: a folder's own name where it is unambiguous, not its path."""
    names = {path: Path(path).name or path for path in run.workloads}
    counts = Counter(names.values())
    return {path: n if counts[n] == 1 else path for path, n in names.items()}


def show_workload(view: ReportView) -> list[Section]:
    rate, unit, limit = "Requests per second", "good replies per second", find_limit(view)
    if view.factor:
        rates = draw_lines(view, "rate", rate, unit, bound=limit)
        latencies = draw_lines(view, f"{LATENCY}.p50", "Median latency", "ms", log_y=True)
        latencies += draw_lines(view, f"{LATENCY}.p95", "p95 latency", "ms", log_y=True)
        costs = draw_lines(view, "cpu_ms", "CPU per reply", "ms")
    else:
        rates = draw_bars(view, "rate", rate, unit, limit)
        latencies = draw_bars(view, f"{LATENCY}.p95", "p95 latency", "ms")
        costs = draw_stacks(view, CPU, "CPU per reply", "ms")
    return [
        Section(
            "requests per second",
            figure_table(view, f"{unit}{name_baseline(view)}", SPEED_COLUMNS),
            rates,
            "x: median of the rounds' ratios. diff: the largest difference of a probability in the"
            " answers from the reference.",
        ),
        Section("latency", figure_table(view, "", LATENCIES), latencies),
        Section(
            "CPU and memory",
            figure_table(view, "CPU ms per reply | memory MB", COST_COLUMNS),
            costs,
            "CPU: milliseconds per reply. Load: the load generator's own CPU.",
        ),
        # Also what no other table names: on the page and in Markdown.
        Section(
            "every figure",
            figure_table(view, "medians of the rounds", EVERY_COLUMN),
            is_folded=True,
        ),
    ]


def show_run(view: ReportView) -> list[Section]:
    """Shows what belongs to no workload: the starts, and the limits of the cores."""
    title = f"seconds to the first reply{name_baseline(view)}"
    starts = figure_table(view, title, READY_COLUMNS)
    limits = view.summary.limits
    allowed = [
        [workload, *("" if rate is None else format_figure(rate) for rate in rates)]
        for workload in view.run.workloads
        for rates in [(limits.decode(workload), limits.forward(), limits.both(workload))]
    ]
    return [
        Section("Starts", starts, draw_bars(view, "ready_s", "Time to the first reply", "s")),
        Section(
            "What the cores allow",
            format_table(["", "decode", "forward", "both"], allowed, title="images per second"),
            note="Decode and forward (eager fp32): each alone. Both: a server that does both.",
        ),
    ]


def find_limit(view: ReportView) -> tuple[float, str] | None:
    drawn = view.summary.limits.drawn(view.cells[0].workload) if view.cells else None
    return drawn and (drawn[0], f"{drawn[1]}, {format_figure(drawn[0])} per second")


def name_baseline(view: ReportView) -> str:
    """Returns the meaning of the column `x`; empty without a baseline, as is the column."""
    return f"; x: relative to {view.baseline}" if view.baseline else ""
