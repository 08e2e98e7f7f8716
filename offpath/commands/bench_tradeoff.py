"""`offpath bench tradeoff`: max batch delay, batch size and workers, each turned alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options
from offpath.commands.tune import read_choices

if TYPE_CHECKING:
    from rich.console import Console

    from offpath.profiling.experiments.tradeoff_result import TradeoffResult


@click.command("tradeoff")
@options.model_option
@click.option("--preset", help="cpu, t4 or a file: where each knob is turned from.")
@click.option(
    "--workload",
    default="photos-55k",
    show_default=True,
    help="photos-1200k, photos-55k or a folder of photographs.",
)
@click.option(
    "--max-batch-delays-ms", default="1,2,5,10,20", show_default=True, metavar="N,..."
)
@click.option("--batch-sizes", default="1,2,4,8,16", show_default=True, metavar="N,...")
@click.option("--workers", default="1,2,4", show_default=True, metavar="N,...")
@click.option(
    "--clients",
    default="1,4,32",
    show_default=True,
    metavar="N,...",
    help="Each setting meets each of them.",
)
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5), default=4, show_default=True)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(0),
    default=3,
    show_default=True,
    help="Seconds of load before each window.",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(0),
    default=15,
    show_default=True,
    help="Seconds of load before the first setting: Java compiles meanwhile.",
)
@options.generator_option
@options.seed_option
@options.json_option
@options.plot_option
@options.html_option
def command(
    max_batch_delays_ms: str,
    batch_sizes: str,
    workers: str,
    clients: str,
    json_path: Path | None,
    plot_path: Path | None,
    html_path: Path | None,
    **asked: Any,
) -> None:
    """How max batch delay, batch size and workers trade requests a second against latency.

    Each is turned alone, the others stay as the preset has them, at light, middling and full load.
    One server, settings over the register API, interleaved rounds; Ctrl-C keeps what --json has.
    """
    from rich.console import Console

    from offpath.commands.bench_progress import LiveProgress
    from offpath.profiling.experiments.tradeoff import (
        DELAY,
        SIZE,
        WORKERS,
        TradeoffChoices,
        run_tradeoff,
    )
    from offpath.profiling.experiments.tradeoff_result import TRADEOFF
    from offpath.profiling.experiments.tuning.plot import check_suffix

    choices = TradeoffChoices(
        knobs={
            DELAY: read_choices("max_batch_delays_ms", max_batch_delays_ms),
            SIZE: read_choices("batch_sizes", batch_sizes),
            WORKERS: read_choices("workers", workers),
        },
        clients=read_choices("clients", clients),
        command=options.command_line(),
        **asked,
    )
    if plot_path is not None:
        check_suffix(plot_path)

    with options.keeping(json_path, "windows"), LiveProgress() as progress:
        result = run_tradeoff(choices, progress, options.saving(TRADEOFF, json_path))
    console = Console()
    render_tradeoff(result, plot_path, html_path, console)
    if json_path is not None:
        console.print(f"raw values: {json_path}", highlight=False, soft_wrap=True)


def render_tradeoff(
    result: TradeoffResult,
    plot_path: Path | None,
    html_path: Path | None,
    console: Console,
) -> None:
    """Prints the tables, draws what was asked for."""
    from offpath.profiling.experiments.tradeoff_report import (
        print_tradeoff,
        save_tradeoff_plot,
        write_tradeoff_page,
    )

    print_tradeoff(result, console)
    if plot_path is not None:
        save_tradeoff_plot(result, plot_path)
        console.print(f"plot: {plot_path}", highlight=False, soft_wrap=True)
    if html_path is not None:
        write_tradeoff_page(result, html_path)
        console.print(f"page: {html_path}", highlight=False, soft_wrap=True)
