"""Renders a profile for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from offpath.profiling.core.figures import (
    format_bytes,
    format_figure,
    format_ms,
    format_ratio,
    format_share,
)
from offpath.profiling.experiments.server_figures import (
    list_account,
    list_doubts,
    list_server_facts,
)
from offpath.profiling.in_process.profile_result import (
    FunctionSample,
    HandlerProfile,
    LineSample,
    ProfileResult,
)
from offpath.profiling.in_process.profile_summary import (
    StageRow,
    count_images,
    find_busy_functions,
    find_hot_functions,
    find_hot_lines,
    group_lines,
    list_stages,
    summarise_buckets,
    summarise_stages,
)

HOT_FUNCTIONS = 15
BUSY_FUNCTIONS = 8


def print_profile(result: ProfileResult, console: Console) -> None:
    """Prints what was profiled, then each handler's tables, then the handlers' ratio."""
    console.print(escape(format_heading(result)), highlight=False)
    for profile in result.handlers:
        batches = describe_batches(profile)
        console.print(f"\n[bold]{escape(profile.name)}[/]{batches}", highlight=False)
        for table in make_tables(profile):
            console.print(table)
        for path in profile.files:
            console.print(f"file: {escape(path)}", highlight=False, soft_wrap=True)
    for doubt in list_doubts(result.handlers):
        console.print(f"[yellow]{escape(doubt)}[/]", highlight=False)
    for line in format_ratios(result.handlers):
        console.print(escape(line), highlight=False)


def format_heading(result: ProfileResult) -> str:
    """Kind, photographs and processor in one line."""
    workload, host = result.workload, result.host
    size = format_bytes(workload["mean_bytes"]) if "mean_bytes" in workload else "?"
    return (
        f"{result.kind}: {workload.get('name', 'no photographs')},"
        f" {workload.get('count', '?')} photographs of {size} mean;"
        f" {host.get('cores', '?')} cores, {host.get('cpu', 'unknown processor')}"
    )


def describe_batches(profile: HandlerProfile) -> str:
    """Batches, images and the mean in words; nothing without batches."""
    if not profile.batches:
        return ""
    total = summarise_stages(profile.batches)[-1]
    images = count_images(profile.batches)
    mean = f"{format_ms(total.mean_s)} ms a batch, {format_ms(total.image_mean_s)} an image"
    return f": {total.count:,} batches, {images:,} images; mean {mean}"


def make_tables(profile: HandlerProfile) -> list[Table]:
    """All tables that the handler's samples allow."""
    tables = []
    if list_stages(profile.batches):
        tables.append(make_stage_table(profile))
    if profile.server.get("account"):
        tables.append(make_account_table(profile.server))
        tables.append(make_server_table(profile.server))
    if profile.functions:
        tables.append(make_bucket_table(profile))
        hot = find_hot_functions(profile.functions, HOT_FUNCTIONS)
        busy = find_busy_functions(profile.functions, BUSY_FUNCTIONS)
        tables.append(make_function_table("by cumulative time", hot))
        tables.append(make_function_table("by own time", busy))
    return [*tables, *map(make_line_table, group_lines(profile.lines))]


def make_stage_table(profile: HandlerProfile) -> Table:
    """Milliseconds by stage; the last rows make them add up."""
    rows = summarise_stages(profile.batches)
    table = new_table("ms a batch", "stage")
    has_device = any(row.device_mean_s is not None for row in rows)
    for column in ("p50", "p95", "p99", "mean", *(["device"] if has_device else [])):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("mean ms an image", justify="right")
    for row in rows:
        if row.stage == "total":
            table.add_section()
        table.add_row(*list_stage_cells(row, has_device))
    return table


def list_stage_cells(row: StageRow, has_device: bool) -> list[str]:
    """The stage's figures as text."""
    device = "" if row.device_mean_s is None else format_ms(row.device_mean_s)
    return [
        escape(row.stage),
        *(format_ms(value) for value in (row.p50_s, row.p95_s, row.p99_s, row.mean_s)),
        *([device] if has_device else []),
        format_share(row.share),
        format_ms(row.image_mean_s),
    ]


def make_account_table(server: Mapping[str, Any]) -> Table:
    """A client's mean latency part by part."""
    table = new_table("a client's mean latency, from its socket to the model", "part")
    table.add_column("where")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    for part, where, ms, share in list_account(server):
        table.add_row(
            escape(part), escape(where), format_ms(ms / 1e3), format_share(share)
        )
    table.add_section()
    table.add_row("total", "client", format_figure(server["mean_ms"]), "100 %")
    return table


def make_server_table(server: Mapping[str, Any]) -> Table:
    """What client, server and machine counted."""
    table = new_table("what was counted", "name")
    table.add_column("value", justify="right")
    for name, value in list_server_facts(server):
        table.add_row(escape(name), escape(value))
    return table


def make_bucket_table(profile: HandlerProfile) -> Table:
    """Own time by bucket."""
    images = count_images(profile.batches)
    table = new_table("own time by bucket, all threads", "bucket")
    for column in ("s", "share", "calls", *(["ms an image"] if images else [])):
        table.add_column(column, justify="right", no_wrap=True)
    for row in summarise_buckets(profile.functions):
        cells = [format_figure(row.own_s), format_share(row.share), f"{row.calls:,}"]
        per_image = [format_ms(row.own_s / images)] if images else []
        table.add_row(escape(row.bucket), *cells, *per_image)
    return table


def make_function_table(order: str, functions: Sequence[FunctionSample]) -> Table:
    """Functions in the order in which they come."""
    table = new_table(f"top {len(functions)} functions {order}", "function")
    for column in ("cumulative ms", "own ms", "calls"):
        table.add_column(column, justify="right")
    table.add_column("bucket", no_wrap=True)
    for sample in functions:
        table.add_row(
            escape(f"{sample.name} {format_place(sample.file, sample.line)}"),
            format_ms(sample.cumulative_s),
            format_ms(sample.own_s),
            f"{sample.calls:,}",
            escape(sample.bucket),
        )
    return table


def format_place(file: str, line: int) -> str:
    """The file's name and the line; nothing for a built-in, which has no file."""
    return f"({Path(file).name}:{line})" if line else ""


def make_line_table(lines: Sequence[LineSample]) -> Table:
    """One function's lines with their share of it."""
    whole_s = sum(sample.time_s for sample in lines)
    title = (
        f"{lines[0].function} ({Path(lines[0].file).name}): {format_figure(whole_s)} s"
    )
    table = new_table(escape(title), "line")
    for column in ("hits", "ms", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("source", no_wrap=True, overflow="ellipsis")
    for sample in find_hot_lines(lines):
        share = sample.time_s / whole_s if whole_s else 0.0
        style = "bold" if share > 0.2 else None
        cells = (f"{sample.line}", f"{sample.hits:,}", format_ms(sample.time_s))
        source = escape(sample.source.rstrip())
        table.add_row(*cells, format_share(share), source, style=style)
    return table


def format_ratios(handlers: Sequence[HandlerProfile]) -> list[str]:
    """Each later handler's time an image over the first's, in one line each."""
    means = [
        (profile.name, summarise_stages(profile.batches)[-1].image_mean_s)
        for profile in handlers
        if profile.batches
    ]
    return [
        f"{name} takes {format_ratio(mean_s / means[0][1])} the time of {means[0][0]} an image:"
        f" {format_ms(mean_s)} ms, {format_ms(means[0][1])} ms"
        for name, mean_s in means[1:]
        if means[0][1]
    ]


def new_table(title: str, first: str) -> Table:
    """A table with names at the left; fits 80 columns."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1)
    )
    table.add_column(first, overflow="fold")
    return table
