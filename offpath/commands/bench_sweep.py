"""`offpath bench sweep`: servers against the number of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options
from offpath.commands import showing

if TYPE_CHECKING:
    from offpath.profiling.experiments.sweep import SweepChoices

CLIENTS = "1,2,4,8,16,32,64,128,256"


@click.command("sweep")
@click.option(
    "--scenario",
    type=click.Choice(["restart", "keep"]),
    default="keep",
    show_default=True,
    help="restart: start each server anew before each step; keep: start it once.",
)
@click.option(
    "--clients",
    "--users",
    "clients",
    metavar="N,...",
    default=CLIENTS,
    show_default=True,
    help="Numbers of closed-loop clients, one step each.",
)
@options.workloads_option("photos-55k")
@options.model_option
@options.servers_option
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Largest batch of each server; 1: no batching.",
)
@options.rounds_option(1)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5),
    default=10,
    show_default=True,
    help="Length of a step.",
)
@options.warm_up_option(
    10,
    "Seconds of load after each start of a server, 2 before a further step.",
)
@options.generator_option
@options.seed_option
@options.append_option
@showing.output_options
def command(append: bool, outputs: showing.Outputs, **asked: Any) -> None:
    """Measures rate, p50/p95 latency and failures of each server against the number of clients.

    Finished steps are kept in --json, also after Ctrl-C.
    """
    from offpath.profiling.experiments.sweep import run_sweep

    choices = make_choices(**asked)
    options.measure_and_show("sweep", run_sweep, choices, outputs, append)


def make_choices(
    clients: str,
    servers: str,
    warm_up_s: float,
    seconds: float,
    seed: int,
    generator: str,
    **asked: Any,
) -> SweepChoices:
    """Turns the command line's values into choices."""
    from offpath.profiling.experiments.on_servers import Windows
    from offpath.profiling.experiments.sweep import SweepChoices

    return SweepChoices(
        servers=showing.split_names(servers),
        clients=showing.read_numbers("--clients", clients, CLIENTS),
        windows=Windows(seconds, warm_up_s, seed=seed, generator=generator),
        command=showing.command_line(),
        **asked,
    )
