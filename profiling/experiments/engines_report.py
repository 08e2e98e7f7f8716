"""Renders the engines' benchmark: for the terminal and as cells that the page shares."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from offpath.profiling.core.figures import format_figure
from offpath.profiling.experiments.engines_result import (
    BASELINE,
    UNFOLDED,
    EnginesResult,
)
from offpath.profiling.experiments.engines_summary import (
    EngineRow,
    Spread,
    find_best,
    find_noise,
    measure_folding,
    summarise_engines,
)
from offpath.profiling.report.report import new_table

COST_COLUMNS = (
    *("load s", "import s", "RSS MB", "PSS MB"),
    *("file MB", "build s"),
)
PARITY_COLUMNS = (
    *("photographs", "move", "changed"),
    *("gate: move", "changed", "verdict"),
)
PARITY_TITLE = f"largest move of a probability, changed best classes, beside {BASELINE}"


def print_engines(result: EnginesResult, console: Console) -> None:
    """Prints three tables per model, what is missing, and what makes the figures doubtful."""
    all_rows = summarise_engines(result)
    for model in dict.fromkeys(row.model for row in all_rows):
        rows = select_rows(all_rows, model)
        sizes = list_batch_sizes(rows)
        for title, columns, cells in (
            (f"{model}: {describe_team(result)}", speed_columns(sizes), speed_cells),
            ("ms an image, one process", latency_columns(sizes, result), latency_cells),
            ("start, memory of a process, artefact", COST_COLUMNS, cost_cells),
        ):
            console.print(
                make_table(title, columns, [cells(row, sizes) for row in rows])
            )
        parity = [parity_cells(row, result.parity_bound) for row in rows if row.parity]
        if parity:
            console.print(make_table(PARITY_TITLE, PARITY_COLUMNS, parity))
        for line in describe_model(result, rows, model):
            console.print(escape(line), highlight=False)
        console.print()
    for line in list_missing(result):
        console.print(f"[yellow]{escape(line)}[/]", highlight=False)
    for line in find_noise(result):
        console.print(f"[yellow]{escape(line)}[/]", highlight=False)


def select_rows(rows: Sequence[EngineRow], model: str) -> list[EngineRow]:
    """A model's rows that stand in tables."""
    return [row for row in rows if row.model == model and row.variant != UNFOLDED]


def list_batch_sizes(rows: Sequence[EngineRow]) -> list[int]:
    """All batch sizes that were measured."""
    return sorted({size for row in rows for size in row.rates})


def make_table(
    title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]
) -> Table:
    """Figures beside the variants' names."""
    table = new_table(escape(title), *columns, first="engine")
    for row in cells:
        table.add_row(*row)
    return table


def describe_team(result: EnginesResult) -> str:
    """What a rate counts."""
    processes, cores = result.settings["processes"], result.host["cores"]
    name = "process" if processes == 1 else "processes"
    return f"images/s on {cores} cores, {processes} {name} x 1 thread"


def speed_columns(sizes: Sequence[int]) -> list[str]:
    """Rate, range and ratio by batch size."""
    return [name for size in sizes for name in (f"batch {size}", "range", "x")]


def speed_cells(row: EngineRow, sizes: Sequence[int]) -> list[str]:
    """See `speed_columns`."""
    cells = [row.variant]
    for size in sizes:
        rate, ratio = row.rates.get(size), row.ratios.get(size)
        cells += [
            format_median(rate),
            "" if rate is None else format_range(rate),
            "" if ratio is None else f"{ratio.median:.2f}",
        ]
    return cells


def latency_columns(sizes: Sequence[int], result: EnginesResult) -> list[str]:
    """One thread, then all cores, by batch size."""
    threads = result.settings["processes"]
    narrow = [f"1 thread, {size}" for size in sizes]
    wide = [f"{threads} threads, {size}" for size in sizes] if threads > 1 else []
    return narrow + wide


def latency_cells(row: EngineRow, sizes: Sequence[int]) -> list[str]:
    """See `latency_columns`."""
    cells = [row.variant, *(format_median(row.alone_ms.get(size)) for size in sizes)]
    if row.wide_ms:
        cells += [format_median(row.wide_ms.get(size)) for size in sizes]
    return cells


def cost_cells(row: EngineRow, _: Sequence[int]) -> list[str]:
    """See `COST_COLUMNS`."""
    size, build_s = row.artefact_bytes, row.build_s
    return [
        row.variant,
        f"{row.load_s:.2f}",
        f"{row.import_s:.2f}",
        f"{row.rss_bytes / 1e6:,.0f}",
        f"{row.pss_bytes / 1e6:,.0f}",
        "" if size is None else format_figure(size / 1e6),
        "" if build_s is None else f"{build_s:.0f}",
    ]


def parity_cells(row: EngineRow, bound: float | None) -> list[str]:
    """See `PARITY_COLUMNS`."""
    parity = row.parity
    if parity is None:
        return [row.variant, *("" for _ in PARITY_COLUMNS)]
    return [
        row.variant,
        str(parity.photographs),
        f"{parity.largest_move:.5f}",
        str(parity.top1_changes),
        f"{parity.gate_move:.5f}",
        str(parity.gate_changes),
        "passes" if row.holds(bound) else "refuses",
    ]


def describe_model(
    result: EnginesResult, rows: Sequence[EngineRow], model: str
) -> list[str]:
    """The best variant, the best that the parity gate lets pass, and what folding gives."""
    lines = []
    best, fit = find_best(rows, None), find_best(rows, result.parity_bound)
    if best is not None and len(rows) > 1:
        lines.append(f"best: {describe_ratio(best)}")
    if fit is not None and fit is not best:
        bound = f"within the parity bound {result.parity_bound}"
        lines.append(f"best {bound}: {describe_ratio(fit)}")
    folding = measure_folding(result, model)
    if folding:
        gains = ", ".join(
            f"{gain.median:.2f} x at batch {size} ({format_range(gain)})"
            for size, gain in folding.items()
        )
        lines.append(
            f"limit: normalisation folded into the first convolution gives {BASELINE} {gains}"
        )
    return lines


def describe_ratio(row: EngineRow) -> str:
    """A variant with its ratio in words."""
    size = row.largest_batch
    ratio = row.ratios[size]
    return (
        f"{row.variant}, {ratio.median:.2f} x {BASELINE} ({format_range(ratio)}),"
        f" batch {size}"
    )


def list_missing(result: EnginesResult) -> list[str]:
    """What is not in the tables, and why."""
    return [
        *(f"not run: {name}: {reason}" for name, reason in result.not_run.items()),
        # It begins with the variant's name. What follows the first line, a traceback or the end of
        # a log, was shown when it happened and is in the JSON.
        *(f"left out: {it.reason.splitlines()[0]}" for it in result.failures),
    ]


def format_median(value: Spread | None) -> str:
    """Nothing where it was not measured."""
    return "" if value is None else format_figure(value.median)


def format_range(value: Spread) -> str:
    """From the lowest round to the highest."""
    return f"{format_figure(value.low)}-{format_figure(value.high)}"
