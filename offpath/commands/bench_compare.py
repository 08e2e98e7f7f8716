"""`offpath bench compare`: servers side by side in interleaved rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options
from offpath.commands import run_outputs
from offpath.commands.load_options import CLIENTS_HELP, load_options

if TYPE_CHECKING:
    from offpath.profiling.core.conditions import Condition
    from offpath.profiling.experiments.compare import CompareChoices

# 20 batches of 8: a slow model's window goes on until it has them, for a minute at most.
MIN_REPLIES = 160


@click.command("compare")
@options.workloads_option("photos-1200k", "photos-55k")
@options.model_option
@options.servers_option
@options.variants_option
@click.option(
    "--workers",
    default="",
    metavar="N,...",
    help="Run each server with each of these numbers of workers.  [default: one per core]",
)
@options.batch_size_option
@options.baseline_option
@options.rounds_option(3)
@load_options(
    clients="32",
    clients_help=f"{CLIENTS_HELP} With --rate: connections.",
    seconds=10.0,
    seconds_help=f"Length of a window.  [default: 10, and until there are {MIN_REPLIES} replies,"
    " a minute at most]",
    least_s=0.5,
    warm_up_s=20,
    warm_up_help="Seconds of load before each window; Java compiles for tens of seconds.",
    min_replies=MIN_REPLIES,
    is_full=True,
)
@click.option(
    "--side-by-side",
    is_flag=True,
    help="Start each server once, keep all running and let them take turns. On cores whose speed"
    " changes, take short windows in many rounds. Needs the memory of all servers together.",
)
@options.bound_option
@options.fail_if_option
@run_outputs.output_options
def command(
    baseline: str | None,
    bound_ms: float | None,
    conditions: tuple[Condition, ...],
    outputs: run_outputs.Outputs,
    **asked: Any,
) -> None:
    """Compare servers: requests per second, latencies, CPU, memory, on the same photographs.

    Rounds are interleaved. Each server is started again in each round (or once, with
    --side-by-side), and its answers are checked before it is measured. A server that fails is left
    out with a message, and the others go on. Ctrl-C keeps what --json has.
    """
    # Imported here: `offpath bench --help` needs neither torch nor polars.
    from offpath.profiling.experiments.compare import run_compare

    choices = make_choices(**asked)
    reading = options.Reading(baseline, bound_ms, conditions)
    options.measure_and_show(run_compare, choices, outputs, reading)


def make_choices(servers: str, workers: str, **asked: Any) -> CompareChoices:
    """Returns the choices of the command line; raises UsageError where they contradict."""
    from offpath.profiling.experiments.compare import CompareChoices

    return CompareChoices(
        servers=run_outputs.split_names(servers),
        command=run_outputs.command_line(),
        workers=(run_outputs.read_numbers("--workers", workers, "1,2") if workers else ()),
        **asked,
    )
