"""`offpath bench compare`: servers side by side in interleaved rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options
from offpath.commands import showing

if TYPE_CHECKING:
    from offpath.profiling.core.conditions import Condition
    from offpath.profiling.experiments.compare import CompareChoices

DEFAULT_SECONDS = 10.0
# 20 batches of 8: a slow model's window goes on until it has them, or for a minute.
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
    help="Each server with each of these numbers of workers.  [default: one a core]",
)
@options.baseline_option
@click.option(
    "--clients",
    default="32",
    show_default=True,
    metavar="N,...",
    help="Closed loop: how many send and wait. With --rate: connections.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Open loop: Poisson arrivals a second; latency counts from the time a request was due.",
)
@options.rounds_option(3)
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    help=f"Length of a window.  [default: {DEFAULT_SECONDS:g}, and on until {MIN_REPLIES}"
    " replies, a minute at most]  0, with --probe start: no load, starts alone.",
)
@click.option(
    "--requests",
    type=click.IntRange(1),
    help="Replies in a window, instead of --seconds.",
)
@options.warm_up_option(
    20,
    "Seconds of load before each window; Java compiles for tens of seconds.",
)
@options.tries_option
@click.option(
    "--side-by-side",
    is_flag=True,
    help="Start each server once, keep all running and let them take turns: on cores whose speed"
    " changes, short windows in many rounds. Needs the memory of all.",
)
@click.option(
    "--probe",
    "probes",
    default="",
    metavar="start,memory",
    help="start: the first request against the next 50, and seconds until a further worker is"
    " READY. memory: what the workers' is made of, and with --workers against N times one.",
)
@options.generator_option
@options.seed_option
@options.append_option
@options.bound_option
@options.fail_if_option
@showing.output_options
def command(
    append: bool,
    baseline: str | None,
    bound_ms: float | None,
    conditions: tuple[Condition, ...],
    outputs: showing.Outputs,
    **asked: Any,
) -> None:
    """Requests a second, latencies, CPU and memory of servers on the same photographs and weights.

    Rounds are interleaved; each server starts afresh in each round (or once, --side-by-side) and
    its answers are checked before it is measured. One that fails is left out and said; the others
    go on. Ctrl-C keeps what --json has.
    """
    # Imported here: `offpath bench --help` needs neither torch nor polars.
    from offpath.profiling.experiments.compare import run_compare

    choices = make_choices(**asked)
    reading = options.Reading(baseline, bound_ms, conditions)
    options.measure_and_show("compare", run_compare, choices, outputs, append, reading)


def make_choices(
    servers: str,
    workers: str,
    clients: str,
    probes: str,
    seconds: float | None,
    requests: int | None,
    warm_up_s: float,
    rate: float | None,
    seed: int,
    generator: str,
    **asked: Any,
) -> CompareChoices:
    """The choices of the command line; raises UsageError when they exclude each other."""
    from offpath.profiling.experiments.compare import CompareChoices
    from offpath.profiling.experiments.on_servers import Windows
    from offpath.profiling.experiments.server_subject import PROBE_START, PROBES

    if seconds is not None and requests is not None:
        raise click.UsageError("--seconds and --requests exclude each other")
    probed = showing.split_names(probes)
    if not set(probed) <= set(PROBES):
        raise click.UsageError(f"--probe {probes!r}: expected {' or '.join(PROBES)}")
    if seconds == 0 and PROBE_START not in probed:
        raise click.UsageError("--seconds 0 measures starts alone: needs --probe start")
    is_default = seconds is None and requests is None
    windows = Windows(
        seconds=DEFAULT_SECONDS if is_default else seconds,
        requests=requests,
        min_replies=MIN_REPLIES if is_default else 0,
        warm_up_s=warm_up_s,
        rate=rate,
        seed=seed,
        generator=generator,
    )
    return CompareChoices(
        servers=showing.split_names(servers),
        clients=showing.read_numbers("--clients", clients, "8,32"),
        windows=windows,
        command=showing.command_line(),
        probes=probed,
        workers=showing.read_numbers("--workers", workers, "1,2") if workers else (),
        **asked,
    )
