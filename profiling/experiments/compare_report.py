"""Declares what `bench compare` shows: rates with the limits, latencies, CPU, memory, starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.report.declared import Column, Part, Report, TableSpec
from offpath.profiling.report.document import Document
from offpath.profiling.report.measured import (
    FAILED,
    LATENCIES,
    RATE,
    View,
    bar_charts,
    draw_latencies,
    figure_column,
    figure_table,
    make_run_document,
    range_column,
    ratio_column,
    stacked_charts,
)

BASELINE = "torchserve-stock"


def find_limit(view: View, cell: Cell) -> tuple[float, str] | None:
    drawn = view.summary.limits.drawn(cell.workload)
    if drawn is None:
        return None
    return drawn.rate, f"{drawn.name}, {format_figure(drawn.rate)} per second"


def name_baseline(view: View) -> str:
    """Returns the meaning of the column `x`; empty without a baseline, as is the column."""
    return f"; x: relative to {view.baseline}" if view.baseline else ""


class AllowedRates(NamedTuple):
    """The limits of the cores on one workload, in images per second."""

    workload: str
    rates: tuple[float | None, ...]


def list_limits(view: View) -> Iterator[AllowedRates]:
    """Lists the limits of decoding alone, of the forward alone, and of both together."""
    limits = view.summary.limits
    for workload in view.run.workloads:
        rates = limits.decode(workload), limits.forward(), limits.both(workload)
        if any(rates):
            yield AllowedRates(workload, rates)


def allowed(title: str, place: int) -> Column[AllowedRates]:
    def show(row: AllowedRates) -> str:
        rate = row.rates[place]
        return "" if rate is None else format_figure(rate)

    return Column(title, show)


RATES = bar_charts("rate", "Requests per second", "good replies per second", find_limit)
CPU = (
    ("cpu_ms.frontend", "front end"),
    ("cpu_ms.workers", "workers"),
    ("cpu_ms.generator", "load"),
)
SPEED_TABLE = figure_table(
    lambda view: f"good replies per second{name_baseline(view)}",
    (
        *(RATE, range_column("rate"), ratio_column("rate")),
        figure_column("goodput"),
        figure_column("decode_percent", decimals=0),
        figure_column("answer_difference", "diff", decimals=4),
        FAILED,
    ),
)
COST_TABLE = figure_table(
    "CPU ms per reply | memory MB",
    (
        *(figure_column(metric, decimals=2) for metric, _ in CPU),
        figure_column("cpu_ms.nginx", decimals=2),
        figure_column("cpu_ms", decimals=2),
        figure_column("rss_mb", "RSS", decimals=0),
        figure_column("pss_mb", "PSS", decimals=0),
        figure_column("gpu_percent", decimals=0),
        figure_column("jpeg_percent", decimals=0),
        figure_column("gpu_mb", decimals=0),
    ),
)
READY_TABLE = figure_table(
    lambda view: f"seconds to the first reply{name_baseline(view)}",
    (
        *(
            figure_column("ready_s", "s"),
            range_column("ready_s"),
            ratio_column("ready_s"),
        ),
    ),
)
LIMITS_TABLE: TableSpec[View, AllowedRates] = TableSpec(
    "images per second",
    list_limits,
    (
        Column("", lambda row: row.workload),
        *(allowed("decode", 0), allowed("forward", 1), allowed("both", 2)),
    ),
    words=1,
)
REPORT: Report[View] = Report(
    "Servers side by side",
    (
        Part(
            "requests per second",
            (RATES, SPEED_TABLE),
            "x: median of the rounds' ratios. diff: the largest difference of a probability"
            " in the answers from the reference.",
        ),
        Part("latency", (draw_latencies, figure_table("", LATENCIES))),
        Part(
            "CPU and memory",
            (
                stacked_charts(CPU, "CPU per reply", "ms"),
                COST_TABLE,
            ),
            "CPU: milliseconds per reply. Load: the load generator's own CPU.",
        ),
    ),
    headline=(RATES,),
)
WHOLE_RUN: tuple[Part[View], ...] = (
    Part(
        "Starts",
        (
            bar_charts("ready_s", "Time to the first reply", "s"),
            READY_TABLE,
        ),
    ),
    Part(
        "What the cores allow",
        (LIMITS_TABLE,),
        "Decode and forward (eager fp32): each alone. Both: a server that does both.",
    ),
)


def document_of(run: Run, baseline: str | None) -> Document:
    base = baseline or BASELINE
    return make_run_document(run, REPORT, base, find_doubts(run), WHOLE_RUN)
