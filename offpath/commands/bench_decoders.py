"""`offpath bench decoders`: JPEG decoders and resizers on one core, and what they do to answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options

if TYPE_CHECKING:
    from offpath.profiling.experiments.decoders import DecodersResult


@click.command("decoders")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    default=("photos-1200k", "photos-55k"),
    show_default=True,
    help="photos-1200k, photos-55k or a folder of photographs; may be given several times.",
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--photographs",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="At most so many of each workload.",
)
@options.seed_option
@options.json_option
@options.plot_option
@options.html_option
def command(
    json_path: Path | None, plot_path: Path | None, html_path: Path | None, **asked: Any
) -> None:
    """CPU milliseconds an image of each way from a JPEG to the model's input, and its parity.

    One core; each photograph goes all ways in turn. A decoder alone is divided by Pillow's, a
    decoder with its transform by the stock handler's; answers are EfficientNet-Lite0's beside the
    stock way's. Decoders that are not installed are named with what installs them.
    """
    from rich.console import Console

    from offpath.commands.bench_progress import LiveProgress
    from offpath.profiling.experiments.decoders import (
        DECODERS,
        DecodersChoices,
        run_decoders,
    )

    choices = DecodersChoices(command=options.command_line(), **asked)

    with options.keeping(json_path, "rounds"), LiveProgress() as progress:
        result = run_decoders(
            choices, progress.on_step, options.saving(DECODERS, json_path)
        )
    render_decoders(result, plot_path, html_path, Console())


def render_decoders(
    result: DecodersResult, plot_path: Path | None, html_path: Path | None, console: Any
) -> None:
    """Prints the tables, draws what was asked for."""
    from offpath.profiling.experiments.decoders_report import (
        print_decoders,
        save_decoders_plot,
        write_decoders_page,
    )

    print_decoders(result, console)
    if plot_path is not None:
        save_decoders_plot(result, plot_path)
        console.print(f"plot: {plot_path}")
    if html_path is not None:
        write_decoders_page(result, html_path)
        console.print(f"page: {html_path}")
