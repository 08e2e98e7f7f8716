"""`offpath bench start`: how long servers take to be ready, and to add a worker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options

if TYPE_CHECKING:
    from offpath.profiling.experiments.start import StartResult


@click.command("start")
@click.option(
    "--servers",
    default="offpath,offpath-unforked,torchserve-stock",
    show_default=True,
    help="Comma-separated, in the order of a round.",
)
@options.baseline_option
@options.model_option
@click.option("--workload", default="photos-55k", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@options.seed_option
@options.json_option
def command(servers: str, baseline: str, json_path: Path | None, **asked: Any) -> None:
    """Seconds until a server with one worker is READY, and from asking for one more until that is;
    the first request against the steady ones.

    Rounds are interleaved, and each start is of a new server. One that fails is left out and said.
    """
    from rich.console import Console

    from offpath.commands.bench_progress import LiveProgress
    from offpath.profiling.experiments.start import START, StartChoices, run_start

    choices = StartChoices(
        servers=options.split_names(servers), command=options.command_line(), **asked
    )

    with options.keeping(json_path, "starts"), LiveProgress() as progress:
        result = run_start(choices, progress, options.saving(START, json_path))
    print_starts(result, baseline, Console())


def print_starts(result: StartResult, baseline: str, console: Any) -> None:
    """One line per server: medians of the rounds."""
    from rich.markup import escape

    from offpath.profiling.experiments.start import summarise_starts
    from offpath.profiling.report.report import new_table

    table = new_table(
        f"seconds to READY, ms of requests; medians; x: to {baseline}",
        *("server", "x", "worker", "range", "x", "first", "next", "ratio"),
    )
    for row in summarise_starts(result, baseline):
        table.add_row(
            row.server,
            f"{row.ready_s:.1f}",
            format_ratio(row.ready_ratio),
            "" if row.worker_s is None else f"{row.worker_s:.1f}",
            (
                ""
                if row.worker_range is None
                else "{:.1f}-{:.1f}".format(*row.worker_range)
            ),
            format_ratio(row.worker_ratio),
            f"{row.first_ms:.0f}",
            f"{row.steady_ms:.0f}",
            f"{row.first_ratio:.2f}",
        )
    console.print(table)
    for name, reason in result.failures.items():
        console.print(f"[yellow]{name}:[/] {escape(reason)}", highlight=False)


def format_ratio(ratio: float | None) -> str:
    """Empty for the baseline itself."""
    return "" if ratio is None else f"{ratio:.2f}"
