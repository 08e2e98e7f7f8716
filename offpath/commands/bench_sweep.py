"""`offpath bench sweep`: servers against the number of clients; with --vary, ours by setting."""

from __future__ import annotations

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
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(0),
    default=10,
    show_default=True,
    help="Seconds of load after each start of a server, 2 before a further step.",
)
@options.generator_option
@options.seed_option
@click.option(
    "--append",
    is_flag=True,
    help="Add rounds to the --json file; unlike runs are refused.",
)
@showing.output_options
def command(append: bool, outputs: showing.Outputs, **asked: Any) -> None:
    """Requests a second, p50/p95 and failed responses of each server against clients.

    With --vary: of our server against max batch delay, batch size, workers or threads, at light,
    middling and full load. Finished steps are kept in --json, also after Ctrl-C.
    """
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.experiments.sweep import SweepChoices, run_sweep
    from offpath.profiling.experiments.sweep_report import document_of
    from offpath.profiling.experiments.vary import run_vary

    choices = make_choices(**asked)
    keeper = options.Keeper(outputs, append, "sweep")
    showing.say_estimate(choices.estimated_s)
    with showing.keeping(outputs, "steps"), LiveProgress() as progress:
        if isinstance(choices, SweepChoices):
            run = run_sweep(choices, progress, keeper.save)
        else:
            run = run_vary(choices, progress, keeper.save)
    run = keeper.join(run)
    showing.present(run, document_of(run, None), outputs)
    options.fail_if_left_out(run)


def make_choices(
    scenario: str,
    clients: str | None,
    workload: str,
    model: str,
    servers: str,
    batch_size: int,
    knobs: tuple[str, ...],
    preset: str | None,
    rounds: int,
    **load: Any,
) -> SweepChoices | VaryChoices:
    """The choices of the command line; raises UsageError when they exclude each other."""
    from offpath.profiling.experiments.on_servers import Windows
    from offpath.profiling.experiments.sweep import SweepChoices
    from offpath.profiling.experiments.vary import VaryChoices

    if preset is not None and not knobs:
        raise click.UsageError("--preset is where --vary turns from: give that too")
    asked = clients or (VARY_CLIENTS if knobs else CLIENTS)
    numbers = showing.read_numbers("--clients", asked, CLIENTS)
    if knobs:
        return VaryChoices(
            model=model,
            preset=preset,
            workload=workload,
            knobs=dict(map(read_knob, knobs)),
            clients=numbers,
            rounds=rounds,
            windows=Windows(min_replies=VARY_MIN_REPLIES, **load),
            command=showing.command_line(),
        )
    return SweepChoices(
        scenario=scenario,
        clients=numbers,
        workload=workload,
        model=model,
        servers=showing.split_names(servers),
        batch_size=batch_size,
        windows=Windows(**load),
        rounds=rounds,
        command=showing.command_line(),
    )


def read_knob(text: str) -> tuple[str, tuple[int, ...]]:
    """`delay=1,2` -> ("max_batch_delay_ms", (1, 2))."""
    name, _, values = text.partition("=")
    if name not in KNOBS:
        raise click.UsageError(
            f"--vary {text!r}: expected {' or '.join(KNOBS)}, as in delay=1,2,5"
        )
    return KNOBS[name], showing.read_numbers(f"--vary {name}", values, "1,2,5")
