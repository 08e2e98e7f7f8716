"""`offpath bench engines`: the model's forward by every engine and precision that can run here."""

from __future__ import annotations

from typing import Any

import click

from offpath.commands.bench_options import fail_if_left_out
from offpath.commands.showing import (
    Outputs,
    command_line,
    keeping,
    output_options,
    present,
    read_earlier,
    read_numbers,
    split_names,
)

MODELS = ("resnet50", "efficientnet-lite0")


@click.command("engines")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice([*MODELS, "near-free"]),
    default=MODELS,
    show_default=True,
    help="May be given several times.",
)
@click.option(
    "--engines",
    default="",
    metavar="NAMES",
    help="Comma-separated: `openvino` for all its precisions, `openvino:int8` for one; eager:fp32"
    " is always measured.  [default: all]",
)
@click.option("--batch-sizes", default="1,8", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=1,
    show_default=True,
    help="Length of a window; at least three batches.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    help="That run at the same time.  [default: one a core; 1 on cuda]",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Of each process.",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True
)
@click.option(
    "--workload",
    default="photos-55k",
    show_default=True,
    help="Photographs whose answers are compared; a name or a folder.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--append",
    is_flag=True,
    help="Add rounds, models or engines to the --json file; unlike runs are refused.",
)
@output_options
def command(outputs: Outputs, append: bool, **asked: Any) -> None:
    """Speed, start, memory and answers of the engines, each beside eager fp32 in the same rounds.

    Artefacts are built as `offpath archive` builds them and run by the handler's own code, each in
    processes of its own. The figure that counts is images a second of all cores: one process a
    core with one thread each, as workers run. One that fails is left out and said; the others go
    on. Ctrl-C keeps the finished rows of --json.
    """
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.core.host import count_cores
    from offpath.profiling.experiments.engines import EnginesChoices, run_engines

    asked["engines"] = split_names(asked["engines"])
    asked["batch_sizes"] = read_numbers("--batch-sizes", asked["batch_sizes"], "1,8")
    asked["processes"] = asked["processes"] or (
        count_cores() if asked["device"] == "cpu" else 1
    )
    choices = EnginesChoices(**asked, command=command_line())
    earlier = read_earlier(outputs, append, "engines")
    with keeping(outputs, "rows"), LiveProgress() as progress:
        run = run_engines(choices, progress, outputs.save, earlier)
    from offpath.profiling.experiments.engines_report import document_of

    present(run, document_of(run, None), outputs)
    fail_if_left_out(run)
