"""What `bench sweep` shows: rate, latency and failures against clients, or against a knob."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_clients, format_figure
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import LATENCY, Summary
from offpath.profiling.report.columns import FAILED, RATE, Column, TableSpec
from offpath.profiling.report.declared import (
    Part,
    Report,
    list_details,
    list_facts,
    make_document,
)
from offpath.profiling.report.document import (
    Document,
    LineChart,
    Section,
    Series,
    Table,
)
from offpath.profiling.report.specs import LineSpec

P50, P95 = f"{LATENCY}.p50", f"{LATENCY}.p95"
X = "clients"
RATES = LineSpec("rate", X, "Requests a second", "good replies a second", X)
REPORT = Report(
    "Servers against the number of clients",
    (
        Part(
            "{workload}: against the number of clients",
            (
                RATES,
                LineSpec(P50, X, "Median latency", "ms", X, log_y=True),
                LineSpec(P95, X, "p95 latency", "ms", X, log_y=True),
                LineSpec("failed", X, "Failed responses", "not 200", X),
            ),
            (
                TableSpec(
                    "",
                    (RATE, Column(P50, "p50 ms"), Column(P95, "p95 ms"), FAILED),
                    (X,),
                ),
            ),
        ),
    ),
    (RATES,),
)
# A setting of the server -> its name on charts.
KNOBS = {
    "max_batch_delay_ms": "max batch delay, ms",
    "batch_size": "batch size",
    "workers": "workers",
    "threads": "threads a worker",
}
# In a run's settings: setting -> its values; and the one that each is turned from.
VARIED, REFERENCE = "vary", "reference"


def document_of(run: Run, baseline: str | None) -> Document:
    """All tables and charts of a run."""
    if VARIED in run.settings:
        return make_vary_document(run)
    return make_document(run, REPORT, baseline, find_doubts(run))


def make_vary_document(run: Run) -> Document:
    """A section a knob: the other settings stay the preset's."""
    summary = Summary(run)
    cells = summary.cells()
    sections, headline = [], []
    reference, cores = run.settings[REFERENCE], run.host["cores"]
    for knob, values in run.settings[VARIED].items():
        points = [
            (value, find_variant(run, turn_knob(reference, knob, value, cores)))
            for value in sorted({*values, reference[knob]})
        ]
        rates = make_chart(summary, cells, knob, points, {"": "rate"})
        latency = {", p50": P50, ", p95": P95}
        latencies = make_chart(summary, cells, knob, points, latency)
        table = make_table(summary, cells, knob, points)
        sections.append(
            Section(KNOBS[knob], [rates, latencies, table], "* the preset's")
        )
        headline += [rates, latencies]
    return Document(
        "How the server's settings trade, each turned alone",
        sections,
        run.command,
        list_facts(run),
        list_details(run),
        find_doubts(run),
        headline,
    )


def turn_knob(
    reference: Mapping[str, Any], knob: str, value: int, cores: int
) -> dict[str, Any]:
    """The reference setting with one knob turned; the cores are shared among its workers."""
    turned = {**reference, knob: value}
    if knob == "workers" and value != reference[knob]:
        turned["threads"] = max(1, cores // value)
    return turned


def find_variant(run: Run, setting: Mapping[str, Any]) -> str:
    """The variant with a setting; empty where there is none."""
    found = [n for n, it in run.variants.items() if setting.items() <= it.items()]
    return found[0] if found else ""


def make_chart(
    summary: Summary,
    cells: Sequence[Cell],
    knob: str,
    points: Sequence[tuple[int, str]],
    metrics: dict[str, str],
) -> LineChart:
    """One or several metrics against a knob, a line a number of clients."""
    series = [
        Series(
            format_clients(cell.clients) + suffix,
            [
                (float(value), found)
                for value, variant in points
                if (found := summary.value(variant, cell, metric)) is not None
            ],
        )
        for suffix, metric in metrics.items()
        for cell in cells
    ]
    is_rate = "rate" in metrics.values()
    return LineChart(
        f"{'Requests a second' if is_rate else 'Latency'} against {KNOBS[knob]}",
        KNOBS[knob],
        "good replies a second" if is_rate else "ms",
        [line for line in series if line.points],
        log_x=True,
        log_y=not is_rate,
    )


def make_table(
    summary: Summary,
    cells: Sequence[Cell],
    knob: str,
    points: Sequence[tuple[int, str]],
) -> Table:
    """A value a row; rate, p50 and p95 for each number of clients."""
    preset = summary.run.settings[REFERENCE][knob]
    columns = [
        heading
        for cell in cells
        for heading in (f"{cell.clients}: req/s", "p50", "p95")
    ]
    rows = []
    for value, variant in points:
        figures = [
            summary.value(variant, cell, metric)
            for cell in cells
            for metric in ("rate", P50, P95)
        ]
        texts = ["" if f is None else format_figure(f) for f in figures]
        rows.append([f"{value} *" if value == preset else str(value), *texts])
    return Table("by clients; times in ms", ["", *columns], rows)
