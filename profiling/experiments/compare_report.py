"""What `bench compare` shows: rates with the limits, latencies, CPU and memory, starts."""

from __future__ import annotations

from dataclasses import replace

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_figure
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.load.page_kinds import KINDS
from offpath.profiling.report.columns import (
    FAILED,
    LATENCIES,
    RANGE,
    RATE,
    RATIO,
    Column,
    TableSpec,
    View,
    show_range,
    show_ratio,
)
from offpath.profiling.report.declared import Part, Report, make_document
from offpath.profiling.report.document import Document, Section, Table
from offpath.profiling.report.specs import BarSpec, CurveSpec, StackedSpec

BASELINE = "torchserve-stock"
# Fact of a variant that is a server with a number of workers: which server.
SERVER = "server"


def draw_limit(view: View, cell: Cell) -> tuple[float, str] | None:
    """The line through the bars of rates."""
    drawn = view.summary.limits.drawn(cell.workload)
    if drawn is None:
        return None
    return drawn.rate, f"{drawn.name}, {format_figure(drawn.rate)} a second"


def show_processes(view: View, variant: str, cell: Cell) -> str:
    """How many there are of each group: `1+2+3`."""
    names = view.summary.metrics(variant, cell)
    counts = [
        view.summary.value(variant, cell, name)
        for name in names
        if name.startswith("processes.")
    ]
    return "+".join(f"{count:.0f}" for count in counts if count is not None)


def show_separate(view: View, variant: str, cell: Cell) -> str:
    """PSS of a team of N against N times the same server's with one worker."""

    def team(name: str) -> tuple[float, float]:
        figures = ("processes.workers", "team_pss_mb")
        count, pss_mb = (view.summary.value(name, cell, f) or 0.0 for f in figures)
        return count, pss_mb

    server = view.run.variants[variant].get(SERVER)
    count, pss_mb = team(variant)
    for name, facts in view.run.variants.items():
        one, one_mb = team(name)
        if server is not None and facts.get(SERVER) == server and one == 1 < count:
            return f"{100 * pss_mb / (count * one_mb):.0f} %"
    return ""


RATES = BarSpec("rate", "Requests a second", "good replies a second", draw_limit)
CPU = StackedSpec(
    (
        ("cpu_ms.frontend", "front end"),
        ("cpu_ms.workers", "workers"),
        ("cpu_ms.generator", "load"),
    ),
    "CPU a reply",
    "ms",
)
SPEED_TABLE = TableSpec(
    "good replies per second; x: to {baseline}, median of the rounds' ratios;"
    " difference: of an answer's probability from the reference, at most",
    (
        *(RATE, RANGE, RATIO),
        Column("goodput"),
        Column("decode_percent", decimals=0),
        Column("limit_percent", decimals=0),
        Column("answer_difference", "difference", decimals=4),
        FAILED,
    ),
    ("clients",),
)
COST_TABLE = TableSpec(
    "CPU ms a reply | memory MB",
    (
        *(Column(metric, decimals=2) for metric, _ in CPU.parts),
        Column("cpu_ms.nginx", decimals=2),
        Column("cpu_ms", decimals=2),
        Column("rss_mb", "RSS", decimals=0),
        Column("pss_mb", "PSS", decimals=0),
        Column("gpu_percent", decimals=0),
        Column("gpu_mb", decimals=0),
    ),
    ("clients",),
)
MEMORY_TABLE = TableSpec(
    "MB after load; team: workers and what forks them",
    (
        Column("processes.workers", "processes", show=show_processes),
        Column("team_pss_mb", decimals=0),
        Column(title="N x one", show=show_separate),
        Column("team_unique_mb", decimals=0),
    ),
    ("clients",),
)
KINDS_TABLE = TableSpec(
    "team PSS by kind of page, MB",
    tuple(
        Column(f"team_pss_bytes.{kind}", kind, scale=1e-6, decimals=0) for kind in KINDS
    ),
    ("clients",),
)
STARTS = (
    BarSpec("ready_s", "Time to the first reply", "s"),
    BarSpec("worker_s", "Time to a further worker", "s"),
)
READY_TABLE = TableSpec(
    "s to the first reply, ms of the first requests; x: to {baseline}",
    (
        Column("ready_s", "s"),
        Column(title="range", show=show_range("ready_s")),
        Column(title="x", show=show_ratio("ready_s")),
        Column("first_ms", "first"),
        Column("steady_ms", "next"),
        Column("first_ratio", "ratio"),
    ),
)
WORKER_TABLE = TableSpec(
    "s until a further worker is READY; x: to {baseline}",
    (
        Column("worker_s", "s"),
        Column(title="range", show=show_range("worker_s")),
        Column(title="x", show=show_ratio("worker_s")),
    ),
)
REPORT = Report(
    "Servers side by side",
    (
        Part("{workload}: requests a second", (RATES,), (SPEED_TABLE,)),
        Part(
            "{workload}: latency",
            (CurveSpec(),),
            (TableSpec("", LATENCIES, ("clients",)),),
        ),
        Part(
            "{workload}: CPU and memory",
            (CPU,),
            (COST_TABLE, MEMORY_TABLE, KINDS_TABLE),
            "Milliseconds of CPU a reply; load is the load generator's own.",
        ),
        Part("Starts", STARTS, (READY_TABLE, WORKER_TABLE), of_starts=True),
    ),
    (RATES,),
)


def document_of(run: Run, baseline: str | None) -> Document:
    """All tables and charts of a run."""
    document = make_document(run, REPORT, baseline or BASELINE, find_doubts(run))
    limits = list_limit_rows(Summary(run))
    columns = ("", "engine", "decode", "forward", "both")
    table = Table("images a second", columns, limits, words=2)
    allowed = Section("What the cores allow", [table], "Each alone; both: the limit.")
    sections = [*document.sections, *([allowed] if limits else [])]
    return replace(document, sections=sections)


def list_limit_rows(summary: Summary) -> list[list[str]]:
    """A row a workload and engine."""
    limits = summary.limits
    return [
        [
            workload,
            engine or "eager",
            *(
                "" if rate is None else format_figure(rate)
                for rate in (
                    limits.decode(workload),
                    limits.forward(engine),
                    limits.both(workload, engine),
                )
            ),
        ]
        for workload in summary.run.workloads
        for engine in limits.engines()
    ]
