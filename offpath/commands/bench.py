"""`offpath bench`: servers side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from offpath.commands import bench_options as options
from offpath.commands import bench_setup, run_outputs
from offpath.commands.load_options import CLIENTS_HELP, load_options

# 20 batches of 8: a slow model's window goes on until it has them, for a minute at most.
MIN_REPLIES = 160


@click.group()
def command() -> None:
    """Measure servers side by side, in one run, beside the limits of the cores."""


@command.command("compare")
@options.workloads_option
@options.model_option
@options.servers_option
@options.variants_option
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Number of workers of each server.  [default: one per core]",
)
@options.batch_size_option
@options.baseline_option
@options.rounds_option
@load_options(
    clients="32",
    clients_help=f"{CLIENTS_HELP} Of several numbers, charts show lines. With --rate: connections.",
    seconds=10.0,
    seconds_help=f"Length of a window.  [default: 10, and until there are {MIN_REPLIES} replies,"
    " a minute at most]",
    least_s=0.5,
    warm_up_s=20,
    warm_up_help="Seconds of load before each window; Java compiles for tens of seconds.",
    min_replies=MIN_REPLIES,
    has_rate=True,
)
@click.option(
    "--side-by-side",
    is_flag=True,
    help="Start each server once, keep all running and let them take turns. On cores whose speed"
    " changes, take short windows in many rounds. Needs the memory of all servers together.",
)
@run_outputs.output_options
def compare(
    servers: str,
    baseline: str | None,
    outputs: run_outputs.Outputs,
    **asked: Any,
) -> None:
    """Compare servers: requests per second, latencies, CPU, memory, on the same photographs.

    Rounds are interleaved. Each server is started again in each round (or once, with
    --side-by-side), and its answers are checked before it is measured. A server that fails is left
    out with a message, and the others go on. Ctrl-C keeps what --json has.
    """
    # Imported here: `offpath bench --help` needs neither torch nor polars.
    from offpath.profiling.experiments.compare import Choices

    choices = Choices(
        servers=run_outputs.split_names(servers),
        command=run_outputs.command_line(),
        **asked,
    )
    options.measure_and_show(choices, outputs, baseline)


@command.command("show")
@click.argument("path", metavar="JSON_PATH", type=click.Path(path_type=Path, dir_okay=False))
@options.baseline_option
@run_outputs.output_options
@click.option(
    "--plot",
    "plot_path",
    type=run_outputs.FILE,
    help="Draw the main charts into FILE.svg.",
)
@click.option(
    "--markdown",
    is_flag=True,
    help="Print Markdown tables for a README or an issue.",
)
def show(
    path: Path,
    baseline: str | None,
    outputs: run_outputs.Outputs,
    plot_path: Path | None,
    markdown: bool,
) -> None:
    """Print (and draw) a saved result of `offpath bench`, `offpath profile` or `offpath tune`."""
    from offpath.profiling.core.run import load_run

    run_outputs.check_output(plot_path, "matplotlib")
    run = load_run(path)
    outputs.save(run)
    outputs = replace(outputs, plot_path=plot_path, markdown=markdown)
    options.show_run(run, outputs, baseline)


command.add_command(bench_setup.setup)
