"""The report of a profile of handlers, and what it shares with a server's account."""

from __future__ import annotations

import math
from collections import Counter
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
    Chart,
    Histogram,
    StackedBar,
    StackedChart,
)
from offpath.profiling.report.document import Document, Section, format_table, join_blocks
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


def draw_bars(handlers: Handlers, title: str, kind: str) -> list[Chart]:
    """Draws stacked bars of the parts of a kind: on one scale and, if several, as shares."""
    bars = [
        StackedBar(one.name, [*parts.items()], f"{show_ms(one.total(kind))} ms")
        for one in handlers
        if (parts := one.parts(kind))
    ]
    charts: list[Chart] = [StackedChart(title, "ms", bars)] if bars else []
    if len(bars) > 1:
        shares = [replace(bar, text="") for bar in bars]
        charts.append(StackedChart("Shares of each", "", shares, is_share=True))
    return charts


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


def draw_typical_batch(handler: Profiled) -> BarChart:
    """Draws the stages of one batch end to end, then the time that no stage covers."""
    batch_ms, stages = handler.find_typical_batch()
    images = handler.cell.batch_size
    title = f"{handler.name}: {images} images in {show_ms(batch_ms)} ms"
    return BarChart(title, "ms", lay_out(stages))


def read_functions(one: Profiled) -> list[FunctionSample]:
    return read_samples(one.summary.run, FUNCTIONS, one.name, FunctionSample)


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


def format_lines(group: LineGroup) -> str:
    rows = [
        [
            str(line.line),
            f"{line.hits:,}",
            format_ms(line.time_s),
            format_share(line.time_s / group.total_s),
            line.source.rstrip(),
        ]
        for line in group.list_hot()
    ]
    columns = ["line", "hits", "ms", "share", "source"]
    return format_table(columns, rows, title=group.name(), words=0, code=4)


def format_overview(handlers: Handlers) -> str:
    rows = [
        [
            handler.name,
            f"{handler.batches:,}",
            f"{handler.images:,}",
            show_ms(handler.value(BATCH + MEAN)),
            show_ms(handler.total(STAGE)),
            format_ratio(handler),
        ]
        for handler in handlers
    ]
    base = handlers[0].baseline
    note = f"x: speed per image relative to {base}." if base else ""
    columns = ["", "batches", "images", "ms per batch", "ms per image", "x"]
    return format_table(columns, rows, note=note)


def format_stages(handler: Profiled) -> str:
    if not handler.parts(STAGE):
        return ""
    rows = [
        [
            row.part,
            *map(row.show, (".p50", ".p95", ".p99", ".mean")),
            show_ms(handler.value(f"{DEVICE}.{row.part}{MEAN}")),
            row.format_share(),
            row.format_ms(),
        ]
        for row in list_rows(handler, STAGE)
    ]
    columns = ["stage", "p50", "p95", "p99", "mean", "device", "share", "per image"]
    return format_table(columns, rows, title=f"{handler.name}, ms per batch", has_total=True)


def format_kinds(handler: Profiled) -> str:
    calls: Counter[str] = Counter()
    for function in read_functions(handler):
        calls[function.kind] += function.calls
    rows = [
        [row.part, row.format_ms(), row.format_share(), f"{calls[row.part]:,}"]
        for row in list_rows(handler, KIND)[:-1]
    ]
    return format_table(["kind", "own ms per image", "share", "calls"], rows, title=handler.name)


def format_functions(
    handlers: Handlers, count: int, order: Callable[[FunctionSample], float]
) -> str:
    """Formats for each handler the functions that come first in an order."""
    columns = ["function", "kind", "cumulative ms", "own ms", "calls"]
    return join_blocks(
        *(
            format_table(
                columns,
                [
                    [
                        name_function(one),
                        one.kind,
                        format_ms(one.cumulative_s),
                        format_ms(one.own_s),
                        f"{one.calls:,}",
                    ]
                    for one in sorted(read_functions(handler), key=order, reverse=True)[:count]
                ],
                title=handler.name,
                words=2,
            )
            for handler in handlers
        )
    )


def show_stages(handlers: Handlers, charts: Sequence[Chart]) -> list[Section]:
    return [
        Section("Handlers", format_overview(handlers)),
        Section("Stages", charts=charts, note="Means of all batches."),
        Section(
            "Stages in figures",
            join_blocks(*map(format_stages, handlers)),
            note="Means add up to the total.",
        ),
        Section(
            "One typical batch",
            charts=[draw_typical_batch(one) for one in handlers if one.parts(STAGE)],
            note="The batch nearest the median, with its stages in their order. The time that no"
            " stage covers comes last. Stages that ran interleaved are drawn end to end.",
        ),
        Section(
            "How long batches take",
            charts=[
                Histogram(f"{one.name}, batches", "ms per batch", values)
                for one in handlers
                if (values := one.values(BATCH))
            ],
        ),
    ]


def show_functions(handlers: Handlers) -> list[Section]:
    written = [
        (one.name, path) for one in handlers for path in list_files(one.summary.run, one.name)
    ]
    return [
        Section(
            "Own time by package",
            join_blocks(*map(format_kinds, handlers)),
            draw_bars(handlers, "own ms per image", KIND),
        ),
        Section(
            "Hot functions, by cumulative time",
            format_functions(handlers, HOT_FUNCTIONS, lambda function: function.cumulative_s),
        ),
        Section(
            "Busy functions, by own time",
            format_functions(handlers, BUSY_FUNCTIONS, lambda function: function.own_s),
        ),
        Section("Lines", join_blocks(*map(format_lines, list_line_groups(handlers)))),
        Section("Files", format_table(["", "file"], written, words=2)),
    ]


def document_of(run: Run, baseline: str | None) -> Document:
    """Makes the document of a profile of handlers; the default baseline is the first handler."""
    handlers = read_profile(run, baseline)
    charts = draw_bars(handlers, "Milliseconds per image", STAGE)
    sections = [*show_stages(handlers, charts), *show_functions(handlers)]
    title = f"{TITLES[run.experiment]}: {', '.join(handler.name for handler in handlers)}"
    return describe_run(run, Document(title, sections, warnings=find_doubts(run), headline=charts))
