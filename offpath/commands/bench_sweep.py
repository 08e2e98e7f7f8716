"""`offpath bench sweep`: servers against the number of virtual users."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options
from offpath.handler.errors import ExpectedError

if TYPE_CHECKING:
    from offpath.profiling.experiments.sweep_result import SweepResult

USERS = "1,2,4,8,16,32,64,128,256"


@click.command("sweep")
@click.option(
    "--scenario",
    type=click.Choice(["restart", "keep"]),
    default="keep",
    show_default=True,
    help="Whether a server is started afresh before each step.",
)
@click.option("--users", default=USERS, show_default=True, help="Closed-loop clients.")
@click.option(
    "--workload",
    default="photos-55k",
    show_default=True,
    help="photos-1200k, photos-55k or a folder of photographs.",
)
@options.model_option
@options.servers_option
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Largest batch of each server; 1: no batching.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    default=10,
    show_default=True,
    help="Length of a step.",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(0),
    default=10,
    show_default=True,
    help="Seconds of load after each start of a server.",
)
@options.seed_option
@options.json_option
@options.plot_option
@options.html_option
def command(
    users: str,
    servers: str,
    json_path: Path | None,
    plot_path: Path | None,
    html_path: Path | None,
    **asked: Any,
) -> None:
    """Requests a second, p50/p95 and failed responses of each server against virtual users.

    Finished steps are kept in --json, also after Ctrl-C or when a server dies.
    """
    from rich.console import Console

    from offpath.commands.bench_progress import LiveProgress
    from offpath.profiling.experiments.sweep import SweepChoices, run_sweep
    from offpath.profiling.experiments.sweep_result import SWEEP

    choices = SweepChoices(
        users=options.read_numbers("--users", users, USERS),
        servers=options.split_names(servers),
        command=options.command_line(),
        **asked,
    )
    if json_path is not None and json_path.exists():
        raise ExpectedError(f"result {str(json_path)!r} exists: name another")

    options.say_estimate(choices.estimated_s)
    with options.keeping(json_path, "steps"), LiveProgress() as progress:
        result = run_sweep(choices, progress, options.saving(SWEEP, json_path))
    console = Console()
    render_sweep(result, plot_path, html_path, console)
    if json_path is not None:
        console.print(f"raw values: {json_path}")


def render_sweep(
    result: SweepResult, plot_path: Path | None, html_path: Path | None, console: Any
) -> None:
    """Prints the tables, draws what was asked for."""
    from offpath.profiling.experiments.sweep_report import print_sweep, write_sweep_page

    print_sweep(result, console)
    if plot_path is not None:
        from offpath.profiling.report.plot import save_sweep_plot

        save_sweep_plot(result, plot_path)
        console.print(f"plot: {plot_path}")
    if html_path is not None:
        write_sweep_page(result, html_path)
        console.print(f"page: {html_path}")
