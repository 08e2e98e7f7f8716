"""A profile as a document: stages, how long batches take, functions, lines, written files."""

from __future__ import annotations

import math
from collections.abc import Sequence

from offpath.profiling.core.doubts import find_doubts
from offpath.profiling.core.figures import format_figure, format_ms, format_share
from offpath.profiling.core.run import Run
from offpath.profiling.core.statistics import Summary
from offpath.profiling.profilers.function_sections import (
    make_function_sections,
    make_line_sections,
)
from offpath.profiling.profilers.profile_charts import lay_out, list_bars, stack
from offpath.profiling.profilers.profile_figures import (
    BATCH,
    DEVICE,
    MEAN,
    STAGE,
    TOTAL,
    count_batches,
    count_images,
    find_cell,
    find_typical_batch,
    read_parts,
    read_total,
)
from offpath.profiling.profilers.samples import list_files
from offpath.profiling.report.charts import Chart, Histogram, Waterfall
from offpath.profiling.report.document import Document, Section, Table
from offpath.profiling.report.measured import describe_run

TITLES = {
    "profile-stages": "Where a batch's time goes, by stage",
    "profile-cprofile": "Where the time goes, by function",
    "profile-lines": "Where the time goes, by line",
    "profile-flame": "Where the time goes, by call stack",
}


def document_of(run: Run, baseline: str | None) -> Document:
    """Everything that is shown of a profile; `baseline` is the first handler by default."""
    summary = Summary(run)
    names = [name for name in run.variants if count_batches(summary, name)]
    stages = list_stage_charts(summary, names)
    sections = [
        make_overview(summary, names, baseline),
        *make_stage_sections(summary, names, stages),
        Section("How long batches take", list_histograms(summary, names)),
        *make_function_sections(summary, names),
        *make_line_sections(run, names),
        *make_file_sections(run, names),
    ]
    document = Document(
        title=f"{TITLES[run.experiment]}: {', '.join(names)}",
        sections=sections,
        warnings=find_doubts(run),
        headline=stages,
    )
    return describe_run(run, document)


def make_overview(
    summary: Summary, names: Sequence[str], baseline: str | None
) -> Section:
    """What was measured of each handler, and their times beside one another."""
    base = baseline if baseline and baseline in names else names[0]
    base_ms = read_total(summary, base, STAGE)
    rows = []
    for name in names:
        cell, image_ms = find_cell(summary, name), read_total(summary, name, STAGE)
        batch_ms = summary.value(name, cell, BATCH + MEAN) or 0.0
        counts = (count_batches(summary, name), count_images(summary, name))
        figures = [format_ms(batch_ms / 1e3), format_ms(image_ms / 1e3)]
        ratio = base_ms / image_ms if image_ms else math.nan
        rows.append([name, *(f"{n:,}" for n in counts), *figures, format_figure(ratio)])
    columns = ["", "batches", "images", "ms a batch", "ms an image", "x"]
    note = f"x: how often as quick as {base}, an image." if len(names) > 1 else ""
    if not note:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Section("Handlers", [Table("", columns, rows, note=note)])


def list_stage_charts(summary: Summary, names: Sequence[str]) -> list[Chart]:
    """Mean milliseconds an image by stage, a bar a handler; none where no stages were taken."""
    return stack("Milliseconds an image", "ms", list_bars(summary, names, STAGE))


def make_stage_sections(
    summary: Summary, names: Sequence[str], charts: Sequence[Chart]
) -> list[Section]:
    """Bars, figures and one batch's course; nothing where no stages were taken."""
    if not charts:
        return []
    tables = [make_stage_table(summary, name) for name in names]
    return [
        Section("Stages", charts, "Means of all batches."),
        Section("Stages in figures", tables, "Means add up to the total."),
        Section(
            "One typical batch",
            [make_waterfall(summary, name) for name in names],
            "The batch nearest the median, its stages in their order; what no stage covers stands"
            " last. Stages that ran interleaved are laid end to end.",
        ),
    ]


def make_stage_table(summary: Summary, name: str) -> Table:
    """One handler's stages; a column for the accelerator where it was timed."""
    cell, device = find_cell(summary, name), read_parts(summary, name, DEVICE)

    def show(metric: str) -> str:
        value = summary.value(name, cell, metric)
        return "" if value is None else format_ms(value / 1e3)

    whole = read_total(summary, name, STAGE)
    rows = []
    for part, ms in {**read_parts(summary, name, STAGE), TOTAL: whole}.items():
        metric = BATCH if part == TOTAL else f"{STAGE}.{part}"
        ends = [f"{metric}.{end}" for end in ("p50", "p95", "p99", "mean")]
        on_device = [f"{DEVICE}.{part}{MEAN}"] if device else []
        figures = map(show, [*ends, *on_device])
        share = format_share(ms / whole if whole else 0.0)
        rows.append([part, *figures, share, format_ms(ms / 1e3)])
    columns = ["stage", "p50", "p95", "p99", "mean", *(["device"] if device else [])]
    return Table(
        f"{name}, ms a batch", [*columns, "share", "an image"], rows, has_total=True
    )


def make_waterfall(summary: Summary, name: str) -> Waterfall:
    """The stages of one batch end to end, then what they leave."""
    batch_ms, stages = find_typical_batch(summary, name)
    images = find_cell(summary, name).batch_size
    title = f"{name}: {images} images in {format_ms(batch_ms / 1e3)} ms"
    return Waterfall(title, "ms", lay_out(stages))


def list_histograms(summary: Summary, names: Sequence[str]) -> list[Chart]:
    """The batches' times of each handler."""
    return [
        Histogram(f"{name}, batches", "ms a batch", values)
        for name in names
        if (values := summary.values(name, find_cell(summary, name), BATCH))
    ]


def make_file_sections(run: Run, names: Sequence[str]) -> list[Section]:
    """What was written beside the JSON."""
    rows = [[name, path] for name in names for path in list_files(run, name)]
    return [Section("Files", [Table("", ["", "file"], rows, words=2)])] if rows else []
