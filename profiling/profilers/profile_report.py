"""The figures of a profile and their report.

    batch_ms           duration of a call of `handle`: one value per batch, like the next
    stage_ms.NAME      the share of one stage; `stage_ms.other` is what no stage covers

All batches of a handler have one size, that of its cell. Parts are read in milliseconds per image
and add up to their total. A profile of calls has further parts: the own time of all functions of
one package.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_figure, format_ms, format_share
from offpath.profiling.core.run import Cell, Run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.profilers.collector import BatchSample, FunctionSample, LineSample
from offpath.profiling.profilers.handler_profilers import PROFILERS
from offpath.profiling.report.charts import Bar, BarChart, Chart
from offpath.profiling.report.document import (
    Document,
    Section,
    describe_run,
    format_table,
    join_blocks,
)

# Begins the name of the experiment; a key of PROFILERS follows.
PREFIX = "profile-"
BATCH = "batch_ms"
STAGE, KIND = "stage_ms", "kind"
OTHER, TOTAL = "other", "total"
MEAN = ".mean"
# A run keeps a handler's functions and lines in `details[...][handler]`.
FUNCTIONS, LINES = "functions", "lines"
HOT_FUNCTIONS = 20
# Lines below this share of their function's time, and functions below this share of the slowest
# function's, are left out.
COLD_SHARE = 0.005
# The folder of `handler/`, by which the files of our own handler are known.
ROOT = Path(__file__).parents[2]


def list_batches(samples: Sequence[BatchSample]) -> dict[str, list[float]]:
    """Returns the metrics of some batches. A stage that a batch lacks took no time in it."""
    figures = {BATCH: [1e3 * s.total_s for s in samples]}
    for name in dict.fromkeys(name for sample in samples for name in sample.stages_s):
        figures[f"{STAGE}.{name}"] = [1e3 * s.stages_s.get(name, 0.0) for s in samples]
    if any(sample.stages_s for sample in samples):
        # Negative where stages overlap, so that the sum still holds.
        left = [sample.total_s - sum(sample.stages_s.values()) for sample in samples]
        figures[f"{STAGE}.{OTHER}"] = [1e3 * seconds for seconds in left]
    return figures


@dataclass(frozen=True)
class Profiled:
    """The figures of one handler; `baseline` is what it is compared with, "" for none."""

    summary: Summary
    name: str
    baseline: str = ""

    @cached_property
    def cell(self) -> Cell:
        """The cell in which it was measured, or `Cell()` if it was not."""
        rows = self.summary.run.rows
        cells = (row.cell for row in rows if row.variant == self.name)
        return next((cell for cell in cells if cell != Cell()), Cell())

    @property
    def batches(self) -> int:
        return len(self.values(BATCH))

    @property
    def images(self) -> int:
        return self.batches * self.cell.batch_size

    def value(self, metric: str) -> float | None:
        return self.summary.value(self.name, self.cell, metric)

    def values(self, metric: str) -> list[float]:
        """Returns one value per batch or request."""
        return self.summary.values(self.name, self.cell, metric)

    def parts(self, kind: str) -> dict[str, float]:
        """Returns milliseconds per image by part, in the path's order.

        Parts without any time are left out. Packages have no order: the largest is first.
        """
        if kind == KIND:
            own_ms: dict[str, float] = defaultdict(float)
            for sample in self.list_functions():
                own_ms[sample.kind] += 1e3 * sample.own_s / self.images
            return dict(sorted(own_ms.items(), key=lambda item: -item[1]))
        means = {
            metric.removeprefix(f"{STAGE}.").removesuffix(MEAN): self.value(metric) or 0.0
            for metric in self.summary.metrics(self.name, self.cell)
            if metric.startswith(f"{STAGE}.") and metric.endswith(MEAN)
        }
        found = {
            name: ms / self.cell.batch_size for name, ms in means.items() if ms or name == OTHER
        }
        other = {OTHER: found.pop(OTHER)} if OTHER in found else {}
        return {**found, **other}

    def total(self, kind: str) -> float:
        if kind == KIND:
            return sum(self.parts(KIND).values())
        return (self.value(BATCH + MEAN) or 0.0) / (self.cell.batch_size or 1)

    def list_rows(self, kind: str) -> list[tuple[str, str, str]]:
        """Lists name, milliseconds and share of each part, then those of the total."""
        whole = self.total(kind)
        return [
            (part, format_ms(ms), format_share(ms / whole if whole else 0.0))
            for part, ms in {**self.parts(kind), TOTAL: whole}.items()
        ]

    def list_functions(self) -> list[FunctionSample]:
        rows = self.summary.run.details.get(FUNCTIONS, {}).get(self.name, [])
        return msgspec.convert(rows, list[FunctionSample])

    def list_line_groups(self) -> list[LineGroup]:
        """Lists the functions whose lines took time, the slowest first."""
        rows = self.summary.run.details.get(LINES, {}).get(self.name, [])
        groups: dict[tuple[str, str], list[LineSample]] = {}
        for line in msgspec.convert(rows, list[LineSample]):
            groups.setdefault((line.file, line.function), []).append(line)
        made = [
            LineGroup(self.name, group, math.fsum(line.time_s for line in group))
            for group in groups.values()
        ]
        made.sort(key=lambda group: -group.total_s)
        min_s = COLD_SHARE * made[0].total_s if made else 0.0
        return [group for group in made if group.total_s > (min_s if group.is_ours else 0.0)]

    def format_ratio(self) -> str:
        """Returns how many times as fast as the baseline the handler is, per image."""
        if not self.baseline:
            return ""
        own_ms = self.total(STAGE)
        base_ms = replace(self, name=self.baseline).total(STAGE)
        return format_figure(base_ms / own_ms if own_ms else math.nan)


Handlers = Sequence[Profiled]


def read_profile(run: Run, baseline: str | None = None) -> list[Profiled]:
    """Returns the handlers that were measured. The default baseline is the first of several."""
    summary = Summary(run)
    names = [name for name in run.variants if Profiled(summary, name).batches]
    base = baseline if baseline in names else "".join(names[:1])
    is_alone = len(names) == 1
    return [Profiled(summary, name, "" if is_alone else base or "") for name in names]


def draw_bars(handlers: Handlers, title: str, kind: str) -> list[Chart]:
    """Draws stacked bars of the parts of a kind, on one scale."""
    bars = [
        Bar(one.name, one.total(kind), f"{format_ms(one.total(kind))} ms", parts=parts)
        for one in handlers
        if (parts := one.parts(kind))
    ]
    return [BarChart(title, "ms", bars)] if bars else []


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

    @property
    def is_ours(self) -> bool:
        file = self.lines[0].file
        return file.startswith("handler/") and (ROOT / file).is_file()


def format_lines(group: LineGroup) -> str:
    rows = [
        [
            str(line.line),
            f"{line.hits:,}",
            format_ms(1e3 * line.time_s),
            format_share(line.time_s / group.total_s),
            line.source.rstrip(),
        ]
        for line in group.lines
        if line.hits and line.time_s >= COLD_SHARE * group.total_s
    ]
    first, ms = group.lines[0], format_ms(1e3 * group.total_s)
    title = f"{group.handler}, {first.function} ({Path(first.file).name}): {ms} ms"
    columns = ["line", "hits", "ms", "share", "source"]
    return format_table(columns, rows, title=title, words=0, code=4)


def format_overview(handlers: Handlers) -> str:
    rows = [
        [
            handler.name,
            f"{handler.batches:,}",
            f"{handler.images:,}",
            format_ms(handler.value(BATCH + MEAN)),
            format_ms(handler.total(STAGE)),
            handler.format_ratio(),
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
    rows = []
    for part, ms, share in handler.list_rows(STAGE):
        metric = BATCH if part == TOTAL else f"{STAGE}.{part}"
        figures = [handler.value(metric + end) for end in (".p50", ".p95", ".p99", MEAN)]
        rows.append([part, *map(format_ms, figures), share, ms])
    columns = ["stage", "p50", "p95", "p99", "mean", "share", "per image"]
    return format_table(columns, rows, title=f"{handler.name}, ms per batch", has_total=True)


def format_kinds(handler: Profiled) -> str:
    calls: Counter[str] = Counter()
    for function in handler.list_functions():
        calls[function.kind] += function.calls
    rows = [[*row, f"{calls[row[0]]:,}"] for row in handler.list_rows(KIND)[:-1]]
    return format_table(["kind", "own ms per image", "share", "calls"], rows, title=handler.name)


def format_functions(handler: Profiled) -> str:
    """Formats the functions with the largest cumulative time."""
    functions = sorted(handler.list_functions(), key=lambda one: one.cumulative_s, reverse=True)
    rows = [
        [
            name_function(one),
            one.kind,
            format_ms(1e3 * one.cumulative_s),
            format_ms(1e3 * one.own_s),
            f"{one.calls:,}",
        ]
        for one in functions[:HOT_FUNCTIONS]
    ]
    columns = ["function", "kind", "cumulative ms", "own ms", "calls"]
    return format_table(columns, rows, title=handler.name, words=2)


def show_lines(handlers: Handlers) -> list[Section]:
    """Shows the lines of each handler's own files; those of ours are folded where it has any."""
    shown: list[str] = []
    folded: list[str] = []
    for handler in handlers:
        groups = handler.list_line_groups()
        own = [group for group in groups if not group.is_ours] or groups
        shown += map(format_lines, own)
        folded += [format_lines(group) for group in groups if group not in own]
    note = "The page of --html has the lines of offpath itself too." if folded else ""
    return [
        Section("Lines", join_blocks(*shown), note=note),
        Section("Lines of offpath", join_blocks(*folded), is_folded=True),
    ]


def document_of(run: Run, baseline: str | None) -> Document:
    """Makes the document of a profile of handlers; the default baseline is the first handler."""
    handlers = read_profile(run, baseline)
    charts = draw_bars(handlers, "Milliseconds per image", STAGE)
    sections = [
        Section("Handlers", format_overview(handlers)),
        Section("Stages", charts=charts, note="Means of all batches."),
        Section(
            "Stages in figures",
            join_blocks(*map(format_stages, handlers)),
            note="Means add up to the total.",
        ),
        Section(
            "Own time by package",
            join_blocks(*map(format_kinds, handlers)),
            draw_bars(handlers, "own ms per image", KIND),
        ),
        Section(
            "Hot functions, by cumulative time",
            join_blocks(*map(format_functions, handlers)),
        ),
        *show_lines(handlers),
    ]
    names = ", ".join(handler.name for handler in handlers)
    title = f"{PROFILERS[run.experiment.removeprefix(PREFIX)].title}: {names}"
    return describe_run(run, Document(title, sections, warnings=find_doubts(run), headline=charts))
