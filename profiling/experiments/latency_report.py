"""Where a lone request's latency goes: an account whose parts add up to the client's median.

All figures are medians. The last part is what the others leave: "front end and protocol" where the
server tells its stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from offpath.handler.stages import Stage
from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.report.columns import Column, Show, TableSpec, View
from offpath.profiling.report.declared import Part, Report, make_document
from offpath.profiling.report.document import (
    Chart,
    Document,
    StackedBar,
    StackedChart,
    Table,
)
from offpath.profiling.report.specs import HistogramSpec

NAME = "latency"
# The variants that are no servers.
ALONE, LOOPBACK = "alone", "loopback"
# The work itself, which no server can leave out.
WORK_STAGES = (Stage.DECODE, Stage.TRANSFORM, Stage.TRANSFER, Stage.INFERENCE)
# Metrics with a value a request: stages, WORK_STAGES together, the handler's own clock over all.
STAGE, WORK, TOTAL = "stage_ms", "work", "total"
P50, WORK_P50 = f"{LATENCY}.p50", f"{STAGE}.{WORK}.p50"
CPU = {"frontend": "front end", "workers": "workers", "generator": "load"}
# What a lone request may cost beyond decode, transform and forward.
BOUND_MS = 3.0
Parts = list[tuple[str, float]]


def show_alone(metric: str) -> Show:
    """A figure of the handler alone."""
    return lambda view, _, cell: Column(metric).text(view, ALONE, cell)


def show_overhead(view: View, server: str, cell: Cell) -> str:
    """What a server adds to the work, between the medians, and whether that is within the bound."""
    own = view.summary.value(server, cell, P50)
    alone = view.summary.value(ALONE, cell, WORK_P50)
    if own is None or alone is None:
        return ""
    verdict = "within" if own - alone <= BOUND_MS else "above"
    return f"{format_figure(own - alone)}, {verdict} {BOUND_MS:g}"


LATENCIES = TableSpec(
    "ms; alone: decode, transform and forward in one process, one thread, no server",
    (
        Column(P50, "p50"),
        Column(f"{LATENCY}.p95", "p95"),
        Column(title="alone p50", show=show_alone(WORK_P50)),
        Column(title="p95", show=show_alone(f"{STAGE}.{WORK}.p95")),
        Column(title="overhead", show=show_overhead),
    ),
)


def list_parts(summary: Summary, server: str, cell: Cell) -> Parts:
    """(name, ms) in the order of the path; they add up to the median."""
    alone = summary.value(ALONE, cell, WORK_P50) or 0.0
    parts = [("decode, transform, forward alone", alone)]
    work = summary.value(server, cell, WORK_P50)
    total = summary.value(server, cell, f"{STAGE}.{TOTAL}.p50")
    last = "server"
    if work is not None and total is not None:
        parts.append(("the same in the worker, more", work - alone))
        parts.append(("handler, the rest", total - work))
        last = "front end and protocol"
    archive = summary.run.variants[server].get("archive")
    if archive is not None:
        # Nothing at batch size 1; unknown of servers that are no TorchServe.
        batches = archive.get("batchSize", 1) > 1
        delay_ms = float(archive["maxBatchDelay"]) if batches else 0.0
        parts.append(("max batch delay", delay_ms))
    parts.append(("client and loopback", summary.value(LOOPBACK, cell, P50) or 0.0))
    whole = summary.value(server, cell, P50) or 0.0
    return [*parts, (last, whole - sum(ms for _, ms in parts))]


def list_cpu(summary: Summary, server: str, cell: Cell) -> Parts:
    """CPU milliseconds a request by group of processes; apart from the account."""
    found = {
        name: summary.value(server, cell, f"cpu_ms.{g}") for g, name in CPU.items()
    }
    return [(f"CPU time, {name}", ms) for name, ms in found.items() if ms is not None]


def list_stages(summary: Summary, variant: str, cell: Cell) -> Parts:
    """The medians of the stages that it spends time in."""
    names = [*(stage.value for stage in Stage), TOTAL]
    found = {n: summary.value(variant, cell, f"{STAGE}.{n}.p50") for n in names}
    return [(name, ms) for name, ms in found.items() if ms]


def transpose(title: str, columns: dict[str, Parts]) -> Table:
    """A column a variant, a row a part; two decimals: they are added up by eye."""
    longest: Sequence[tuple[str, float]] = max(columns.values(), key=len)
    names = [name for parts in (longest, *columns.values()) for name, _ in parts]
    shown = {variant: dict(parts) for variant, parts in columns.items() if parts}
    rows = [
        [name, *(f"{own[name]:.2f}" if name in own else "" for own in shown.values())]
        for name in dict.fromkeys(names)
    ]
    return Table(title, ["", *shown], rows)


class AccountChart:
    """A bar a server, of its parts."""

    def make(self, view: View, cells: Sequence[Cell]) -> list[Chart]:
        """See `ChartMaker`."""
        return [
            StackedChart(
                f"{cell.workload}: where the median goes",
                "ms",
                [
                    StackedBar(name, parts, f"{sum(ms for _, ms in parts):.1f} ms")
                    for name, parts in list_accounts(view, cell).items()
                ],
            )
            for cell in cells
        ]


class AccountTable:
    """The parts of the median, and the CPU time that it took."""

    def make(self, view: View, cells: Sequence[Cell]) -> Table | None:
        """See `TableMaker`."""
        (cell,) = cells
        columns = {
            name: [*parts, *list_cpu(view.summary, name, cell)]
            for name, parts in list_accounts(view, cell).items()
        }
        return transpose("where the median goes, ms; CPU time apart", columns)


class StageTable:
    """The handler's stages alone and in the servers that tell them."""

    def make(self, view: View, cells: Sequence[Cell]) -> Table | None:
        """See `TableMaker`."""
        (cell,) = cells
        names = [ALONE, *list_accounts(view, cell)]
        stages = {name: list_stages(view.summary, name, cell) for name in names}
        return transpose("the handler's stages, ms", stages)


def list_accounts(view: View, cell: Cell) -> dict[str, Parts]:
    """The parts of each server that was measured."""
    summary = view.summary
    measured = [name for name in view.variants if summary.value(name, cell, P50)]
    return {name: list_parts(summary, name, cell) for name in measured}


REPORT = Report(
    "One client, one request at a time",
    (
        Part(
            "{workload}: a lone request",
            (AccountChart(), HistogramSpec()),
            (LATENCIES, AccountTable(), StageTable()),
        ),
    ),
    is_row=lambda variant: variant not in (ALONE, LOOPBACK),
)


def document_of(run: Run, baseline: str | None) -> Document:
    """All tables and charts of a run."""
    document = make_document(run, REPORT, baseline, find_doubts(run, few_replies=1))
    parts = [part for section in document.sections for part in section.parts]
    accounts = [part for part in parts if isinstance(part, StackedChart)]
    return replace(document, headline=accounts)
