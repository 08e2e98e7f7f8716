"""The report of `bench compare`: rates with the limits, latencies, CPU, memory, starts.

Charts are bars, or lines against the number of clients where that was varied.
"""

from __future__ import annotations

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import LATENCY
from offpath.profiling.report.document import Document, Section, format_table
from offpath.profiling.report.measured import (
    FAILED,
    LATENCIES,
    RATE,
    View,
    draw_bars,
    draw_lines,
    draw_stacks,
    figure_column,
    figure_table,
    make_run_document,
    range_column,
    ratio_column,
)

BASELINE = "torchserve-stock"
CPU = (
    ("cpu_ms.frontend", "front end"),
    ("cpu_ms.workers", "workers"),
    ("cpu_ms.generator", "load"),
)
SPEED_COLUMNS = (
    *(RATE, range_column("rate"), ratio_column("rate")),
    figure_column("goodput"),
    figure_column("decode_percent", decimals=0),
    figure_column("answer_difference", "diff", decimals=4),
    FAILED,
)
COST_COLUMNS = (
    *(figure_column(metric, decimals=2) for metric, _ in CPU),
    figure_column("cpu_ms.nginx", decimals=2),
    figure_column("cpu_ms", decimals=2),
    figure_column("rss_mb", "RSS", decimals=0),
    figure_column("pss_mb", "PSS", decimals=0),
    figure_column("gpu_percent", decimals=0),
    figure_column("jpeg_percent", decimals=0),
    figure_column("gpu_mb", decimals=0),
)
READY_COLUMNS = (figure_column("ready_s", "s"), range_column("ready_s"), ratio_column("ready_s"))


def document_of(run: Run, baseline: str | None) -> Document:
    base, doubts = baseline or BASELINE, find_doubts(run)
    return make_run_document(run, "Servers side by side", show_workload, base, doubts, show_run)


def show_workload(view: View) -> list[Section]:
    rate, unit, limit = "Requests per second", "good replies per second", find_limit(view)
    if view.has_several_clients:
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
    ]


def show_run(view: View) -> list[Section]:
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


def find_limit(view: View) -> tuple[float, str] | None:
    drawn = view.summary.limits.drawn(view.cells[0].workload) if view.cells else None
    if drawn is None:
        return None
    return drawn.rate, f"{drawn.name}, {format_figure(drawn.rate)} per second"


def name_baseline(view: View) -> str:
    """Returns the meaning of the column `x`; empty without a baseline, as is the column."""
    return f"; x: relative to {view.baseline}" if view.baseline else ""
