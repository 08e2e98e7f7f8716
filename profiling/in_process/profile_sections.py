"""The parts of a profile's page: stages, latencies, one typical request, functions, lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from offpath.profiling.core.figures import format_figure, format_ms, format_share
from offpath.profiling.in_process.profile_result import (
    BatchSample,
    FunctionSample,
    HandlerProfile,
)
from offpath.profiling.in_process.profile_summary import (
    StageRow,
    count_images,
    find_busy_functions,
    find_hot_functions,
    find_hot_lines,
    find_typical_batch,
    group_lines,
    list_stages,
    other_s,
    summarise_buckets,
    summarise_stages,
)
from offpath.profiling.report.old_page import (
    Section,
    Span,
    StackedBar,
    assign_colours,
    histograms,
    join,
    legend,
    stacked_bars,
    table,
    waterfall,
)

HOT_FUNCTIONS = 25
BUSY_FUNCTIONS = 15


def make_stage_sections(handlers: Sequence[HandlerProfile]) -> list[Section]:
    """Stacked bars, tables, distributions and waterfalls, as far as the samples go."""
    staged = [profile for profile in handlers if list_stages(profile.batches)]
    rows = {profile.name: summarise_stages(profile.batches) for profile in staged}
    colours = assign_colours(row.stage for one in rows.values() for row in one[:-1])
    sections = []
    if staged:
        sections += make_bar_sections(list_stage_bars(rows), colours, "Stages")
        sections.append(make_table_section(staged, rows))
    sections += make_distribution_sections(handlers)
    if staged:
        sections.append(make_waterfall_section(staged, colours))
    return sections


def list_stage_bars(rows: Mapping[str, Sequence[StageRow]]) -> list[StackedBar]:
    """Mean milliseconds an image by stage, a bar per handler."""
    return [
        StackedBar(
            name,
            [(row.stage, 1e3 * row.image_mean_s) for row in one[:-1]],
            f"{format_ms(one[-1].image_mean_s)} ms an image",
        )
        for name, one in rows.items()
    ]


def make_bar_sections(
    bars: Sequence[StackedBar], colours: Mapping[str, str], what: str
) -> list[Section]:
    """The bars on one scale; for several bars also as shares of each."""
    label = "; ".join(f"{bar.label}: {bar.text}" for bar in bars)
    on_scale = legend(colours) + stacked_bars(bars, colours, label=label)
    if len(bars) == 1:
        return [Section(what, on_scale)]
    shares = stacked_bars(bars, colours, label=label, shares=True)
    return [
        Section(what, on_scale, "Means, all bars on one scale."),
        Section(f"{what}, as shares", shares, "Each bar's own whole is 100 %."),
    ]


def make_table_section(
    timed: Sequence[HandlerProfile], rows: Mapping[str, Sequence[StageRow]]
) -> Section:
    """A table of stages per handler."""
    parts = []
    for profile in timed:
        caption = f"{profile.name}: {len(profile.batches):,} batches,"
        caption += (
            f" {count_images(profile.batches):,} images; ms a batch, then ms an image"
        )
        parts.append(make_stage_table(caption, rows[profile.name]))
    return Section(
        "Stages in figures", Markup("\n").join(parts), "Means add up to the total."
    )


def make_stage_table(caption: str, rows: Sequence[StageRow]) -> Markup:
    """One handler's stages; a column for the accelerator where it was timed."""
    has_device = any(row.device_mean_s is not None for row in rows)
    device = ["device mean"] if has_device else []
    headers = ["stage", "p50", "p95", "p99", "mean", *device, "share"]
    headers += ["image p50", "image p95", "image p99", "image mean"]
    body = [list_stage_cells(row, has_device) for row in rows]
    return table(headers, body, caption=caption, total_row=True)


def list_stage_cells(row: StageRow, has_device: bool) -> list[str]:
    """The stage's figures as text."""
    device = "" if row.device_mean_s is None else format_ms(row.device_mean_s)
    by_image = (row.image_p50_s, row.image_p95_s, row.image_p99_s, row.image_mean_s)
    return [
        row.stage,
        *map(format_ms, (row.p50_s, row.p95_s, row.p99_s, row.mean_s)),
        *([device] if has_device else []),
        format_share(row.share),
        *map(format_ms, by_image),
    ]


def make_distribution_sections(handlers: Sequence[HandlerProfile]) -> list[Section]:
    """Histograms of the batches' times, all on one axis."""
    values = {p.name: [1e3 * batch.total_s for batch in p.batches] for p in handlers}
    charts = histograms(values, "ms a batch", "batches")
    note = "Dashed lines: p50, p95, p99. All charts have one horizontal axis."
    return [Section("How long batches take", join(charts), note)] if charts else []


def make_waterfall_section(
    timed: Sequence[HandlerProfile], colours: Mapping[str, str]
) -> Section:
    """The stages of the batch nearest the median, one after the other, per handler."""
    parts = []
    for profile in timed:
        batch = find_typical_batch(profile.batches)
        if batch is not None:
            label = (
                f"{profile.name}: {batch.size} images in {format_ms(batch.total_s)} ms"
            )
            parts.append(waterfall(list_spans(batch, colours), caption=label))
    note = (
        "The batch nearest the median, its stages in their order; what no stage covers stands"
        " last. Stages that ran interleaved are laid end to end."
    )
    return Section("One typical batch", join(parts), note)


def list_spans(batch: BatchSample, colours: Mapping[str, str]) -> list[Span]:
    """A batch's stages end to end, then what they leave."""
    parts = [(stage, batch.stages_s[stage]) for stage in list_stages([batch])]
    parts.append(("other", max(0.0, other_s(batch))))
    spans, start_s = [], 0.0
    for stage, length_s in parts:
        text = f"{format_ms(length_s)} ms"
        spans.append(Span(stage, start_s, length_s, text, colours.get(stage, "grey")))
        start_s += length_s
    return spans


def make_function_sections(handlers: Sequence[HandlerProfile]) -> list[Section]:
    """Buckets of own time and the functions with the largest cumulative times."""
    profiled = [profile for profile in handlers if profile.functions]
    if not profiled:
        return []
    bars = [make_bucket_bar(profile) for profile in profiled]
    colours = assign_colours(part for bar in bars for part, _ in bar.parts)
    hot = [
        make_function_table(p.name, find_hot_functions(p.functions, HOT_FUNCTIONS))
        for p in profiled
    ]
    busy = [
        make_function_table(p.name, find_busy_functions(p.functions, BUSY_FUNCTIONS))
        for p in profiled
    ]
    return [
        *make_bar_sections(bars, colours, "Own time by kind of work, all threads"),
        Section("Hot functions", Markup("\n").join(hot), "By cumulative time."),
        Section("Busy functions", Markup("\n").join(busy), "By own time."),
    ]


def make_bucket_bar(profile: HandlerProfile) -> StackedBar:
    """Own time by bucket: milliseconds an image where images were counted, else seconds."""
    rows = summarise_buckets(profile.functions)
    images = count_images(profile.batches)
    scale, unit = (1e3 / images, "ms an image") if images else (1.0, "s")
    whole = scale * sum(row.own_s for row in rows)
    return StackedBar(
        profile.name,
        [(row.bucket, scale * row.own_s) for row in rows],
        f"{format_figure(whole)} {unit}",
    )


def make_function_table(name: str, functions: Sequence[FunctionSample]) -> Markup:
    """One handler's functions in the order in which they come."""
    rows = [
        [
            sample.name,
            format_ms(sample.cumulative_s),
            format_ms(sample.own_s),
            f"{sample.calls:,}",
            sample.bucket,
            format_place(sample.file, sample.line),
        ]
        for sample in functions
    ]
    headers = ["function", "cumulative ms", "own ms", "calls", "kind", "where"]
    return table(headers, rows, caption=name, code=5)


def format_place(file: str, line: int) -> str:
    """The file's last two parts and the line; "built in" for what has no file."""
    return f"{'/'.join(Path(file).parts[-2:])}:{line}" if line else "built in"


def make_line_sections(handlers: Sequence[HandlerProfile]) -> list[Section]:
    """The lines of the watched functions that took time."""
    sections = []
    for profile in handlers:
        parts = []
        for group in group_lines(profile.lines):
            whole_s = sum(sample.time_s for sample in group)
            rows = [
                [
                    str(sample.line),
                    f"{sample.hits:,}",
                    format_ms(sample.time_s),
                    format_share(sample.time_s / whole_s if whole_s else 0.0),
                    sample.source.rstrip(),
                ]
                for sample in find_hot_lines(group)
            ]
            caption = f"{group[0].function} ({Path(group[0].file).name}): {format_ms(whole_s)} ms"
            headers = ["line", "hits", "ms", "share", "source"]
            parts.append(table(headers, rows, left=0, caption=caption, code=4))
        if parts:
            sections.append(
                Section(f"Lines of {profile.name}", Markup("\n").join(parts))
            )
    return sections


def make_file_sections(handlers: Sequence[HandlerProfile]) -> list[Section]:
    """What was written beside the JSON."""
    rows = [[profile.name, path] for profile in handlers for path in profile.files]
    return [Section("Files", table(["handler", "file"], rows, left=2))] if rows else []
