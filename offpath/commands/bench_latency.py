"""`offpath bench latency`: what a lone request costs beyond decode, transform and forward."""

from __future__ import annotations

from typing import Any

import click

from offpath.commands import bench_options as options
from offpath.commands import showing


@click.command("latency")
@options.workloads_option("photos-1200k", "photos-55k")
@options.model_option
@click.option(
    "--servers",
    default="offpath",
    show_default=True,
    help="Comma-separated; all run, one is measured at a time.",
)
@options.variants_option
@options.rounds_option(3)
@click.option(
    "--requests",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Of each window.",
)
@options.warm_up_option(
    15,
    "Seconds of load by eight clients before the first window, at most 2 before the next"
    " ones; Java compiles meanwhile.",
)
@click.option(
    "--pause-ms",
    type=click.FloatRange(0),
    default=0,
    show_default=True,
    help="Between a reply and the next request.",
)
@options.tries_option
@options.seed_option
@options.append_option
@showing.output_options
def command(
    servers: str,
    requests: int,
    warm_up_s: float,
    seed: int,
    append: bool,
    outputs: showing.Outputs,
    **asked: Any,
) -> None:
    """One client, one request at a time: latency beside decode, transform and forward alone.

    Each round takes our archive's handler alone (one process, one thread, no server), the same
    client against a server that answers at once, and the servers, on the same photographs. The
    account says where the difference goes; the bound is 3 ms.
    """
    # Imported here: `offpath bench --help` needs neither torch nor polars.
    from offpath.profiling.experiments.latency import LatencyChoices, run_latency
    from offpath.profiling.experiments.on_servers import Windows

    choices = LatencyChoices(
        servers=showing.split_names(servers),
        clients=(1,),
        windows=Windows(None, warm_up_s, requests=requests, seed=seed),
        command=showing.command_line(),
        side_by_side=True,
        **asked,
    )
    options.measure_and_show("latency", run_latency, choices, outputs, append)
