"""`offpath bench sweep`: servers against the number of clients."""

from __future__ import annotations

from typing import Any

import click

from offpath.commands import bench_options as options
from offpath.commands import run_outputs
from offpath.commands.load_options import load_options


@click.command("sweep")
@options.workloads_option("photos-55k")
@options.model_option
@options.servers_option
@options.batch_size_option
@options.rounds_option(1)
@load_options(
    clients="1,2,4,8,16,32,64,128,256",
    seconds=10,
    least_s=0.5,
    seconds_help="Length of a step.",
    warm_up_s=10,
    warm_up_help="Seconds of load after each start of a server; 2 before a further step.",
)
@run_outputs.output_options
def command(servers: str, outputs: run_outputs.Outputs, **asked: Any) -> None:
    """Measure rate, p50/p95 latency and failures of each server against the number of clients.

    Finished steps are kept in --json, also after Ctrl-C.
    """
    from offpath.profiling.experiments.server_experiment import Choices
    from offpath.profiling.experiments.sweep import run_sweep

    choices = Choices(
        servers=run_outputs.split_names(servers),
        command=run_outputs.command_line(),
        **asked,
    )
    options.measure_and_show(run_sweep, choices, outputs)
