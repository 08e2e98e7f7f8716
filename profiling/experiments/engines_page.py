"""Writes the engines' benchmark as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from offpath.profiling.core.facts import (
    describe_host,
    describe_settings,
    describe_versions,
    describe_workload,
    format_time,
)
from offpath.profiling.experiments.engines_plot import make_bars
from offpath.profiling.experiments.engines_report import (
    COST_COLUMNS,
    PARITY_COLUMNS,
    PARITY_TITLE,
    cost_cells,
    describe_model,
    describe_team,
    latency_cells,
    latency_columns,
    list_batch_sizes,
    list_missing,
    parity_cells,
    select_rows,
    speed_cells,
    speed_columns,
)
from offpath.profiling.experiments.engines_result import BASELINE, EnginesResult
from offpath.profiling.experiments.engines_summary import (
    EngineRow,
    find_noise,
    summarise_engines,
)
from offpath.profiling.report.old_page import (
    Section,
    bar_chart,
    join,
    render_page,
    table,
    write_html,
)


def write_engines_page(result: EnginesResult, path: Path) -> None:
    """Writes the result's page, replacing the file."""
    rows = summarise_engines(result)
    sections = [
        section
        for model in dict.fromkeys(row.model for row in rows)
        for section in make_sections(result, select_rows(rows, model), model)
    ]
    page = render_page(
        "Engines side by side",
        sections,
        command=result.command,
        facts={
            "taken": format_time(result.started_at),
            "host": describe_host(result.host),
            "rounds": str(result.rounds),
            "photographs": describe_workload(result.workload),
        },
        details={
            "versions": describe_versions(result.host),
            "settings": describe_settings(result.settings),
        },
        warnings=[*list_missing(result), *find_noise(result)],
    )
    write_html(page, path)


def make_sections(
    result: EnginesResult, rows: Sequence[EngineRow], model: str
) -> list[Section]:
    """Speed, cost and answers of one model's variants."""
    sizes = list_batch_sizes(rows)
    bars = make_bars(result, rows)
    speed = [
        bar_chart(bars, label=f"{model}: rate over that of {BASELINE}"),
        table(
            ["engine", *speed_columns(sizes)], [speed_cells(row, sizes) for row in rows]
        ),
        table(
            ["engine", *latency_columns(sizes, result)],
            [latency_cells(row, sizes) for row in rows],
            caption="Milliseconds an image, one process",
        ),
    ]
    cost = table(["engine", *COST_COLUMNS], [cost_cells(row, sizes) for row in rows])
    answers = table(
        ["engine", *PARITY_COLUMNS],
        [parity_cells(row, result.parity_bound) for row in rows if row.parity],
    )
    note = " ".join(f"{line}." for line in describe_model(result, rows, model))
    largest = (
        f"Bars: the largest batch size, x {BASELINE}; * the parity gate refuses it"
    )
    return [
        Section(
            f"{model}: speed",
            join(speed),
            f"{describe_team(result)}. {largest}. {note}",
        ),
        Section(
            f"{model}: start and memory",
            cost,
            "Load: from the artefact to the first answer. Memory of a process after it; PSS with"
            " all processes running.",
        ),
        Section(
            f"{model}: answers",
            answers,
            f"{PARITY_TITLE.capitalize()}. First on all photographs; then on those of the"
            f" handler's parity gate, at its default bound {result.parity_bound}.",
        ),
    ]
