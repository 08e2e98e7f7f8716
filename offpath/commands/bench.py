"""`offpath bench`: servers side by side, and the load that goes on for minutes."""

from __future__ import annotations

from pathlib import Path

import click

from offpath.commands import (
    bench_compare,
    bench_engines,
    bench_jvm,
    bench_light,
    bench_log,
    bench_memory,
    bench_setup,
    bench_show,
    bench_start,
    bench_sweep,
    bench_tradeoff,
)
from offpath.commands.bench_options import command_line as command_line
from offpath.handler.errors import ExpectedError


@click.group()
def command() -> None:
    """Measures servers side by side, in one run, with the limits of the cores beside them."""


@command.command("soak")
@click.option(
    "--minutes", type=click.FloatRange(min=0.1), default=10, show_default=True
)
@click.option(
    "--workload", default="photos-55k", show_default=True, help="The good items."
)
@click.option("--model", default="near-free", show_default=True)
@click.option("--clients", type=click.IntRange(1), default=16, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False))
def soak(
    minutes: float,
    workload: str,
    model: str,
    clients: int,
    seed: int,
    json_path: Path | None,
) -> None:
    """Mixed good and bad items against our server: statuses, restarts, the workers' memory.

    Exits with 1 when a 5xx, a lost reply or a worker's restart was seen.
    """
    from rich.console import Console

    from offpath.commands.bench_progress import LiveProgress
    from offpath.profiling.experiments.soak import SOAK, SoakChoices, run_soak
    from offpath.profiling.experiments.soak_report import print_soak

    choices = SoakChoices(minutes, workload, model, clients, seed, command_line())
    with LiveProgress() as progress:
        result = run_soak(choices, progress)
    print_soak(result, Console())
    if json_path is not None:
        SOAK.save(result, json_path)
    if result.problems:
        raise ExpectedError("the soak failed: " + "; ".join(result.problems))


for subcommand in (
    bench_compare.command,
    bench_show.command,
    bench_sweep.command,
    bench_memory.command,
    bench_start.command,
    bench_setup.setup,
    bench_engines.command,
    bench_jvm.command,
    bench_light.command,
    bench_tradeoff.command,
    bench_log.log_rounds,
    bench_log.log_outage,
    bench_log.log_cost,
):
    command.add_command(subcommand)
