"""`offpath bench sweep`: servers against the number of clients; with --vary, ours by setting."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options
from offpath.commands import showing

if TYPE_CHECKING:
    from offpath.profiling.experiments.sweep import SweepChoices
    from offpath.profiling.experiments.vary import VaryChoices

CLIENTS = "1,2,4,8,16,32,64,128,256"
VARY_CLIENTS = "1,4,32"
# Name on the command line -> attribute of a setting, see `sweep_report.KNOBS`.
KNOBS = {
    "delay": "max_batch_delay_ms",
    "batch-size": "batch_size",
    "workers": "workers",
    "threads": "threads",
}
# A window of --vary goes on until it has as many: a p95 of fewer says nothing.
VARY_MIN_REPLIES = 60


@click.command("sweep")
@click.option(
    "--scenario",
    type=click.Choice(["restart", "keep"]),
    default="keep",
    show_default=True,
    help="Whether a server is started afresh before each step.",
)
@click.option(
    "--clients",
    "--users",
    "clients",
    metavar="N,...",
    help=f"Closed-loop clients.  [default: {CLIENTS}; with --vary {VARY_CLIENTS}]",
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
@click.option(
    "--vary",
    "knobs",
    multiple=True,
    metavar=f"[{'|'.join(KNOBS)}]=N,...",
    help="Turns a setting of our server, each alone, the others as the preset has them; may be"
    " given several times. One server takes all settings over its register API.",
)
@click.option("--preset", help="cpu, t4 or a file: where --vary turns from.")
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
    """Requests a second, p50/p95 and failed responses of each server against clients.

    With --vary: of our server against max batch delay, batch size, workers or threads, at light,
    middling and full load. Finished steps are kept in --json, also after Ctrl-C.
    """
    from offpath.profiling.experiments.sweep import SweepChoices, run_sweep
    from offpath.profiling.experiments.vary import run_vary

    choices = make_choices(**asked)
    if isinstance(choices, SweepChoices):
        options.measure_and_show("sweep", run_sweep, choices, outputs, append)
    else:
        options.measure_and_show("sweep", run_vary, choices, outputs, append)


def make_choices(
    clients: str | None,
    servers: str,
    scenario: str,
    batch_size: int,
    knobs: tuple[str, ...],
    preset: str | None,
    warm_up_s: float,
    seconds: float,
    seed: int,
    generator: str,
    **asked: Any,
) -> SweepChoices | VaryChoices:
    """The choices of the command line; raises UsageError when they exclude each other."""
    from offpath.archive.model_config import load_preset
    from offpath.profiling.experiments.on_servers import TURN_WARM_UP_S, Windows
    from offpath.profiling.experiments.sweep import SweepChoices
    from offpath.profiling.experiments.vary import VaryChoices

    if preset is not None and not knobs:
        raise click.UsageError("--preset is where --vary turns from: give that too")
    if preset is not None:
        load_preset(preset)  # or say what is wrong with it, before anything is built
    numbers = clients or (VARY_CLIENTS if knobs else CLIENTS)
    asked |= {
        "clients": showing.read_numbers("--clients", numbers, CLIENTS),
        "command": showing.command_line(),
    }
    windows = Windows(seconds, warm_up_s, seed=seed, generator=generator)
    if not knobs:
        return SweepChoices(
            servers=showing.split_names(servers),
            windows=windows,
            scenario=scenario,
            batch_size=batch_size,
            **asked,
        )
    # The one server is warmed up once.
    shorter = replace(windows, warm_up_s=TURN_WARM_UP_S, min_replies=VARY_MIN_REPLIES)
    return VaryChoices(
        servers=("offpath",),
        windows=shorter,
        knobs=dict(map(read_knob, knobs)),
        preset=preset,
        settle_s=warm_up_s,
        **asked,
    )


def read_knob(text: str) -> tuple[str, tuple[int, ...]]:
    """`delay=1,2` -> ("max_batch_delay_ms", (1, 2))."""
    name, _, values = text.partition("=")
    if name not in KNOBS:
        raise click.UsageError(
            f"--vary {text!r}: expected {' or '.join(KNOBS)}, as in delay=1,2,5"
        )
    return KNOBS[name], showing.read_numbers(f"--vary {name}", values, "1,2,5")
