"""Functions and lines of a profile as sections of its document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from offpath.profiling.core.figures import format_ms, format_share
from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.profilers.profile_charts import list_bars, stack
from offpath.profiling.profilers.profile_figures import (
    BUCKET,
    count_images,
    read_parts,
)
from offpath.profiling.profilers.samples import (
    FUNCTIONS,
    LINES,
    FunctionSample,
    LineSample,
    read_samples,
)
from offpath.profiling.report.document import Section, Table

HOT_FUNCTIONS, BUSY_FUNCTIONS = 20, 12
# Lines below this share of their function, and functions below it of the slowest, are not worth
# a look.
COLD_SHARE = 0.005


def make_function_sections(summary: Summary, names: Sequence[str]) -> list[Section]:
    """Own time by kind of work, then the functions with the largest times."""
    bars = list_bars(summary, names, BUCKET)
    if not bars:
        return []
    functions = {
        name: read_samples(summary.run, FUNCTIONS, name, FunctionSample)
        for name in names
    }
    is_counted = any(count_images(summary, name) for name in names)
    unit = "own ms an image" if is_counted else "own ms in all"
    tables = [make_bucket_table(summary, n, unit, functions[n]) for n in functions]
    hot = [
        make_function_table(
            name, sorted(found, key=lambda f: -f.cumulative_s)[:HOT_FUNCTIONS]
        )
        for name, found in functions.items()
    ]
    busy = [
        make_function_table(
            name, sorted(found, key=lambda f: -f.own_s)[:BUSY_FUNCTIONS]
        )
        for name, found in functions.items()
    ]
    charts = stack(unit, "ms", bars)
    return [
        Section("Own time by kind of work, all threads", [*charts, *tables]),
        Section("Hot functions, by cumulative time", hot),
        Section("Busy functions, by own time", busy),
    ]


def make_bucket_table(
    summary: Summary, name: str, unit: str, functions: Sequence[FunctionSample]
) -> Table:
    """One handler's kinds of work; own times of all of them add up to the whole."""
    parts = read_parts(summary, name, BUCKET)
    whole = sum(parts.values())
    rows = [
        [
            bucket,
            format_ms(ms / 1e3),
            format_share(ms / whole if whole else 0.0),
            f"{sum(f.calls for f in functions if f.bucket == bucket):,}",
        ]
        for bucket, ms in parts.items()
    ]
    return Table(name, ["kind", unit, "share", "calls"], rows)


def make_function_table(name: str, functions: Sequence[FunctionSample]) -> Table:
    """One handler's functions in the order in which they come."""
    rows = [
        [
            f"{sample.name} {format_place(sample.file, sample.line)}".strip(),
            sample.bucket,
            format_ms(sample.cumulative_s),
            format_ms(sample.own_s),
            f"{sample.calls:,}",
        ]
        for sample in functions
    ]
    columns = ["function", "kind", "cumulative ms", "own ms", "calls"]
    return Table(name, columns, rows, words=2)


def format_place(file: str, line: int) -> str:
    """The file's last two parts and the line; nothing for a built-in, which has no file."""
    return f"({'/'.join(Path(file).parts[-2:])}:{line})" if line else ""


def make_line_sections(run: Run, names: Sequence[str]) -> list[Section]:
    """The lines of the watched functions that took time."""
    sections = []
    for name in names:
        groups = group_lines(read_samples(run, LINES, name, LineSample))
        if groups:
            tables = [make_line_table(group) for group in groups]
            sections.append(Section(f"Lines of {name}", tables))
    return sections


def group_lines(lines: Sequence[LineSample]) -> list[list[LineSample]]:
    """The lines of each function that took time, the slowest function first."""
    groups: dict[tuple[str, str], list[LineSample]] = {}
    for sample in lines:
        groups.setdefault((sample.file, sample.function), []).append(sample)
    ordered = sorted(groups.values(), key=lambda group: -sum_s(group))
    least_s = COLD_SHARE * sum_s(ordered[0]) if ordered else 0.0
    return [group for group in ordered if sum_s(group) > least_s]


def sum_s(lines: Sequence[LineSample]) -> float:
    """Seconds of all lines."""
    return math.fsum(line.time_s for line in lines)


def make_line_table(group: Sequence[LineSample]) -> Table:
    """One function's lines that matter, in their order in the source."""
    whole_s = sum_s(group)
    rows = [
        [
            str(sample.line),
            f"{sample.hits:,}",
            format_ms(sample.time_s),
            format_share(sample.time_s / whole_s),
            sample.source.rstrip(),
        ]
        for sample in group
        if sample.hits and sample.time_s >= COLD_SHARE * whole_s
    ]
    file = Path(group[0].file).name
    title = f"{group[0].function} ({file}): {format_ms(whole_s)} ms"
    return Table(title, ["line", "hits", "ms", "share", "source"], rows, 0, code=4)
