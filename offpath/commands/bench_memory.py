"""`offpath bench memory`: servers' memory with 1, 2, 4 workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options

if TYPE_CHECKING:
    from offpath.profiling.experiments.memory import MemoryResult


@click.command("memory")
@options.servers_option
@click.option("--workers", default="1,2,4", show_default=True)
@click.option("--workload", default="photos-55k", show_default=True)
@options.model_option
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=5,
    show_default=True,
    help="Load before the memory is read.",
)
@options.seed_option
@options.json_option
def command(servers: str, workers: str, json_path: Path | None, **asked: Any) -> None:
    """Resident (RSS), proportional (PSS) and unique memory, and GPU memory, after a moment of load.

    The team is the workers and what forks them, without the front end. `N x one`: its PSS against
    that of as many separate workers (needs --workers 1 among the numbers).

    A server that decides on its own how many workers it has (torchserve-stock) shows how many.
    """
    from rich.console import Console

    from offpath.commands.bench_progress import LiveProgress
    from offpath.profiling.experiments.memory import MEMORY, MemoryChoices, run_memory

    choices = MemoryChoices(
        servers=options.split_names(servers),
        workers=options.read_numbers("--workers", workers, "1,2,4"),
        command=options.command_line(),
        **asked,
    )

    with options.keeping(json_path, "measurements"), LiveProgress() as progress:
        result = run_memory(choices, progress, options.saving(MEMORY, json_path))
    print_memory(result, Console())


def print_memory(result: MemoryResult, console: Any) -> None:
    """Two tables, a line per server and number of workers."""
    from rich.markup import escape

    from offpath.profiling.experiments.memory import share_of_separate
    from offpath.profiling.load.page_kinds import KINDS
    from offpath.profiling.report.report import new_table

    has_gpu = any(m.gpu_bytes is not None for m in result.measurements)
    table = new_table(
        "MB after load; team: workers and what forks them",
        *("workers", "processes", "RSS", "PSS", "team PSS", "N x one", "unique"),
        *(("GPU",) if has_gpu else ()),
    )
    kinds = new_table("team PSS by kind of page, MB", "workers", *KINDS)
    for m in result.measurements:
        share = share_of_separate(m, result.measurements)
        gpu = "" if m.gpu_bytes is None else format_mb(m.gpu_bytes)
        table.add_row(
            m.server,
            str(m.workers),
            "+".join(str(count) for count in m.processes.values()),
            format_mb(sum(m.rss_bytes.values())),
            format_mb(sum(m.pss_bytes.values())),
            format_mb(m.team_pss_bytes),
            "" if share is None else f"{100 * share:.0f} %",
            format_mb(m.team_unique_bytes),
            *((gpu,) if has_gpu else ()),
        )
        kinds.add_row(
            m.server,
            str(m.workers),
            *(format_mb(m.team_pages[kind].pss_bytes) for kind in KINDS),
        )
    console.print(table)
    console.print(kinds)
    for name, reason in result.failures.items():
        console.print(f"[yellow]{name}:[/] {escape(reason)}", highlight=False)


def format_mb(size_bytes: int) -> str:
    """In MB of 10^6 bytes."""
    return f"{size_bytes / 1e6:,.0f}"
