"""The declared report of a profile of handlers, and what it shares with a server's account."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_figure, format_ms, format_share
from offpath.profiling.core.run import Run
from offpath.profiling.profilers.profile_figures import (
    BATCH,
    DEVICE,
    KIND,
    MEAN,
    STAGE,
    TOTAL,
    Profiled,
    read_profile,
)
from offpath.profiling.profilers.samples import (
    FUNCTIONS,
    LINES,
    FunctionSample,
    LineSample,
    list_files,
    read_samples,
)
from offpath.profiling.report.charts import (
    Bar,
    BarChart,
    Histogram,
    StackedBar,
    StackedChart,
)
from offpath.profiling.report.declared import (
    Column,
    Draw,
    Part,
    Report,
    TableSpec,
    each,
    make_document,
)
from offpath.profiling.report.document import Document
from offpath.profiling.report.measured import describe_run

TITLES = {
    "profile-stages": "Where a batch's time goes, by stage",
    "profile-cprofile": "Where the time goes, by function",
    "profile-lines": "Where the time goes, by line",
    "profile-flame": "Where the time goes, by call stack",
}
HOT_FUNCTIONS, BUSY_FUNCTIONS = 20, 12
# Lines below this share of their function's time, and functions below this share of the slowest
# function's, are left out.
COLD_SHARE = 0.005

Handlers = Sequence[Profiled]


class PartRow(NamedTuple):
    """One part of a total, in milliseconds per image or request."""

    of: Profiled
    kind: str
    part: str
    ms: float

    def format_share(self) -> str:
        whole = self.of.total(self.kind)
        return format_share(self.ms / whole if whole else 0.0)

    def format_ms(self) -> str:
        return format_ms(self.ms / 1e3)

    def show(self, metric: str) -> str:
        """Returns a metric of a stage as text; its total is the metric of the batch."""
        whole = f"{BATCH}{metric}"
        of_stage = f"{STAGE}.{self.part}{metric}"
        return show_ms(self.of.value(whole if self.part == TOTAL else of_stage))


def show_ms(ms: float | None) -> str:
    return "" if ms is None else format_ms(ms / 1e3)


def list_rows(of: Profiled, kind: str) -> list[PartRow]:
    """Lists the parts of a kind, then their total."""
    parts = {**of.parts(kind), TOTAL: of.total(kind)}
    return [PartRow(of, kind, part, ms) for part, ms in parts.items()]


def draw_bars(title: str, kind: str) -> Draw[Handlers]:
    """Declares stacked bars of the parts of a kind: on one scale and, if several, as shares."""

    def draw(handlers: Handlers) -> Iterator[StackedChart]:
        bars = [
            StackedBar(one.name, [*parts.items()], f"{show_ms(one.total(kind))} ms")
            for one in handlers
            if (parts := one.parts(kind))
        ]
        if bars:
            yield StackedChart(title, "ms", bars)
        if len(bars) > 1:
            shares = [replace(bar, text="") for bar in bars]
            yield StackedChart("Shares of each", "", shares, is_share=True)

    return draw


def lay_out(parts_ms: Mapping[str, float]) -> list[Bar]:
    """Lays parts end to end. A negative part has no length."""
    bars, start = [], 0.0
    for part, ms in parts_ms.items():
        length = max(0.0, ms)
        bars.append(Bar(part, length, f"{format_ms(ms / 1e3)} ms", start=start, part=part))
        start += length
    return bars


def format_ratio(handler: Profiled) -> str:
    """Returns how many times as fast as the baseline a handler is, per image."""
    if not handler.baseline:
        return ""
    own_ms = handler.total(STAGE)
    base_ms = replace(handler, name=handler.baseline).total(STAGE)
    return format_figure(base_ms / own_ms if own_ms else math.nan)


def explain_ratio(handlers: Handlers) -> str:
    base = handlers[0].baseline
    return f"x: speed per image relative to {base}." if base else ""


def draw_typical_batch(handler: Profiled) -> Iterator[BarChart]:
    """Draws the stages of one batch end to end, then the time that no stage covers."""
    if handler.parts(STAGE):
        batch_ms, stages = handler.find_typical_batch()
        images = handler.cell.batch_size
        title = f"{handler.name}: {images} images in {show_ms(batch_ms)} ms"
        yield BarChart(title, "ms", lay_out(stages))


def draw_batches(handler: Profiled) -> Iterator[Histogram]:
    if values := handler.values(BATCH):
        yield Histogram(f"{handler.name}, batches", "ms per batch", values)


def read_functions(one: Profiled) -> list[FunctionSample]:
    return read_samples(one.summary.run, FUNCTIONS, one.name, FunctionSample)


def count_calls(row: PartRow) -> str:
    functions = read_functions(row.of)
    return f"{sum(f.calls for f in functions if f.kind == row.part):,}"


def name_function(sample: FunctionSample) -> str:
    """Returns name, the file's last two parts and line; a built-in function has no file."""
    if not sample.line:
        return sample.name
    return f"{sample.name} ({'/'.join(Path(sample.file).parts[-2:])}:{sample.line})"


class LineGroup(NamedTuple):
    """The lines of one function that were watched, and their total."""

    handler: str
    lines: Sequence[LineSample]
    total_s: float

    def list_hot(self) -> list[LineSample]:
        least_s = COLD_SHARE * self.total_s
        return [line for line in self.lines if line.hits and line.time_s >= least_s]

    def name(self) -> str:
        first = self.lines[0]
        place = f"{first.function} ({Path(first.file).name})"
        return f"{self.handler}, {place}: {format_ms(self.total_s)} ms"


def list_line_groups(handlers: Handlers) -> Iterator[LineGroup]:
    """Lists the functions that took time, for each handler the slowest first."""
    for one in handlers:
        groups: dict[tuple[str, str], list[LineSample]] = {}
        for line in read_samples(one.summary.run, LINES, one.name, LineSample):
            groups.setdefault((line.file, line.function), []).append(line)
        made = [
            LineGroup(one.name, group, math.fsum(line.time_s for line in group))
            for group in groups.values()
        ]
        made.sort(key=lambda group: -group.total_s)
        yield from (g for g in made if g.total_s > COLD_SHARE * made[0].total_s)


def make_line_table(group: LineGroup) -> list[str]:
    columns: Sequence[Column[LineSample]] = (
        Column("line", lambda line: str(line.line)),
        Column("hits", lambda line: f"{line.hits:,}"),
        Column("ms", lambda line: format_ms(line.time_s)),
        Column("share", lambda line: format_share(line.time_s / group.total_s)),
        Column("source", lambda line: line.source.rstrip()),
    )
    return TableSpec(LineGroup.name, LineGroup.list_hot, columns, words=0, code=4)(group)


def list_written(profiled: Sequence[Profiled]) -> list[tuple[str, str]]:
    return [(one.name, path) for one in profiled for path in list_files(one.summary.run, one.name)]


def list_stage_rows(handler: Profiled) -> list[PartRow]:
    return list_rows(handler, STAGE) if handler.parts(STAGE) else []


OVERVIEW: TableSpec[Handlers, Profiled] = TableSpec(
    "",
    lambda handlers: handlers,
    (
        Column("", lambda handler: handler.name),
        Column("batches", lambda handler: f"{handler.batches:,}"),
        Column("images", lambda handler: f"{handler.images:,}"),
        Column("ms per batch", lambda handler: show_ms(handler.value(BATCH + MEAN))),
        Column("ms per image", lambda handler: show_ms(handler.total(STAGE))),
        Column("x", format_ratio),
    ),
    note=explain_ratio,
)
STAGE_TABLE: TableSpec[Profiled, PartRow] = TableSpec(
    lambda handler: f"{handler.name}, ms per batch",
    list_stage_rows,
    (
        Column("stage", lambda row: row.part),
        Column("p50", lambda row: row.show(".p50")),
        Column("p95", lambda row: row.show(".p95")),
        Column("p99", lambda row: row.show(".p99")),
        Column("mean", lambda row: row.show(".mean")),
        Column("device", lambda row: show_ms(row.of.value(f"{DEVICE}.{row.part}{MEAN}"))),
        Column("share", PartRow.format_share),
        Column("per image", PartRow.format_ms),
    ),
    has_total=True,
)


KIND_TABLE: TableSpec[Profiled, PartRow] = TableSpec(
    lambda one: one.name,
    lambda one: list_rows(one, KIND)[:-1],
    (
        Column("kind", lambda row: row.part),
        Column("own ms per image", PartRow.format_ms),
        Column("share", PartRow.format_share),
        Column("calls", count_calls),
    ),
)


def function_table(
    count: int, order: Callable[[FunctionSample], float]
) -> TableSpec[Profiled, FunctionSample]:
    return TableSpec(
        lambda one: one.name,
        lambda one: sorted(read_functions(one), key=order, reverse=True)[:count],
        (
            Column("function", name_function),
            Column("kind", lambda function: function.kind),
            Column("cumulative ms", lambda function: format_ms(function.cumulative_s)),
            Column("own ms", lambda function: format_ms(function.own_s)),
            Column("calls", lambda function: f"{function.calls:,}"),
        ),
        words=2,
    )


def list_each(profiled: Sequence[Profiled]) -> Sequence[Profiled]:
    """Returns the handlers themselves, for `each`."""
    return profiled


HOT_TABLE = function_table(HOT_FUNCTIONS, lambda function: function.cumulative_s)
BUSY_TABLE = function_table(BUSY_FUNCTIONS, lambda function: function.own_s)
FILES_TABLE: TableSpec[Handlers, tuple[str, str]] = TableSpec(
    "",
    list_written,
    (Column("", lambda row: row[0]), Column("file", lambda row: row[1])),
    words=2,
)
draw_stages = draw_bars("Milliseconds per image", STAGE)
HANDLERS: Report[Handlers] = Report(
    "Where the time goes",
    (
        Part("Handlers", (OVERVIEW,)),
        Part("Stages", (draw_stages,), "Means of all batches."),
        Part(
            "Stages in figures",
            (each(list_each, STAGE_TABLE),),
            "Means add up to the total.",
        ),
        Part(
            "One typical batch",
            (each(list_each, draw_typical_batch),),
            "The batch nearest the median, with its stages in their order. The time that no stage"
            " covers comes last. Stages that ran interleaved are drawn end to end.",
        ),
        Part("How long batches take", (each(list_each, draw_batches),)),
        Part(
            "Own time by package",
            (draw_bars("own ms per image", KIND), each(list_each, KIND_TABLE)),
        ),
        Part("Hot functions, by cumulative time", (each(list_each, HOT_TABLE),)),
        Part("Busy functions, by own time", (each(list_each, BUSY_TABLE),)),
        Part("Lines", (each(list_line_groups, make_line_table),)),
        Part("Files", (FILES_TABLE,)),
    ),
    headline=(draw_stages,),
)


def document_of(run: Run, baseline: str | None) -> Document:
    """Makes the document of a profile of handlers; the default baseline is the first handler."""
    handlers = read_profile(run, baseline)
    names = ", ".join(handler.name for handler in handlers)
    report = replace(HANDLERS, title=f"{TITLES[run.experiment]}: {names}")
    return describe_run(run, make_document(report, {"": handlers}, find_doubts(run)))
