"""Reports by declaration: an experiment names tables and charts once, every renderer draws them.

    COMPARE = Report(
        title="Servers side by side",
        parts=(Part("{workload}", (BarSpec("rate", limit=drawn_limit),), (TableSpec(...),)),),
    )

Columns and tables are in `columns.py`, the specs of charts in `specs.py`.
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
from offpath.profiling.core.metrics import METRICS
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.report.columns import Column, TableSpec, View
from offpath.profiling.report.document import Chart, Document, Section, Table
from offpath.profiling.report.specs import TitledSpec


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
