"""`offpath tune`: measures a grid of settings of an archive within a latency bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from offpath.commands import run_outputs
from offpath.commands.progress import LiveProgress
from offpath.commands.run_outputs import FILE, Numbers, Outputs, refuse_existing
from offpath.commands.shared_options import CLIENTS_HELP, server_option
from offpath.errors import ExpectedError


@click.command("tune")
@click.option(
    "--mar", type=FILE, required=True, help="The archive. Its own settings are measured first."
)
@click.option(
    "--p95-ms",
    type=click.FloatRange(0, min_open=True),
    required=True,
    help="Latency bound: 95 % of the replies must come within this time.",
)
@server_option("Server that the archive is measured on.")
@click.option(
    "--workload",
    default="photos-55k",
    show_default=True,
    help="photos-1200k, photos-55k or a folder of images.",
)
@click.option("--clients", type=click.IntRange(1), default=32, show_default=True, help=CLIENTS_HELP)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=Numbers(),
    default=(),
    help="Batch sizes to measure.  [default: half the archive's, its own, twice that]",
)
@click.option(
    "--max-batch-delay-ms",
    "delays_ms",
    type=Numbers(),
    default=(),
    help="Delays to measure.  [default: 1,5]",
)
@click.option(
    "--workers",
    type=Numbers(),
    default=(),
    help="Numbers of workers to measure.  [default: half the cores, the cores]",
)
@click.option(
    "--rounds",
    type=click.IntRange(2),
    default=3,
    show_default=True,
    help="Number of times that each setting is measured.",
)
@click.option(
    "--output",
    type=FILE,
    default=Path("tuned.yaml"),
    show_default=True,
    help="Preset file to write, for `offpath archive --preset FILE`.",
)
@run_outputs.output_options
def command(
    output: Path,
    outputs: Outputs,
    **asked: Any,
) -> None:
    """Measure a grid of batch sizes, delays and workers, and name the best setting.

    Each round starts a server for each setting in turn, the archive's own first. Another setting
    wins only if it is clearly faster in every round and keeps the latency bound. The winner is
    written as a preset. Ctrl-C stops the server; --json keeps the raw values so far.

    \b
    Examples:
      offpath tune --mar store/classifier.mar --p95-ms 200 --workload ~/images --html tune.html
      offpath tune --mar store/classifier.mar --p95-ms 100 --workers 2,4 --batch-size 8
      offpath archive --preset tuned.yaml --force
    """
    from offpath.profiling.experiments import grid_search

    # Wrong options are refused before minutes of measuring.
    refuse_existing("--output", output)
    refuse_existing("--json", outputs.json_path)
    choices = grid_search.TuneChoices(**asked, command=run_outputs.command_line())
    with run_outputs.keeping(outputs, "windows"), LiveProgress() as progress:
        run = grid_search.run_tune(choices, progress, outputs.save)
    result = grid_search.read_result(run)
    if result.verdict.winner is not None:
        # The preset is written first: a failing page must not lose it.
        grid_search.write_preset(output, result)
    run_outputs.present(run, grid_search.document_of(run), outputs)
    if result.verdict.winner is None:
        raise ExpectedError(f"{result.verdict.text} (--p95-ms, --clients)")
    if result.verdict.winner == result.own:
        click.echo(f"keep the archive's setting: {result.own}; nothing to rebuild")
    else:
        click.echo(f"best: {result.verdict.winner}; build with: offpath archive --preset {output}")
