"""`offpath tune`: measures a grid of settings of an archive within a latency bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from offpath.commands import run_outputs
from offpath.commands.progress import LiveProgress
from offpath.commands.run_outputs import FILE, Outputs, read_numbers
from offpath.commands.shared_options import CLIENTS_HELP
from offpath.errors import ExpectedError, WrongOption


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
@click.option(
    "--server",
    type=click.Choice(["torchserve", "granian"]),
    default="torchserve",
    show_default=True,
    help="Server that the archive is measured on.",
)
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
    metavar="N,...",
    help="Batch sizes to measure.  [default: half the archive's, its own, twice that]",
)
@click.option(
    "--max-batch-delay-ms",
    "delays_ms",
    metavar="N,...",
    help="Delays to measure.  [default: 1,5]",
)
@click.option(
    "--workers",
    metavar="N,...",
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
    type=click.Path(path_type=Path),
    default=Path("tuned.yaml"),
    show_default=True,
    help="Preset file to write, for `offpath archive --preset FILE`.",
)
@click.option("--force", is_flag=True, help="Replace --output if it exists.")
@run_outputs.output_options
def command(
    batch_sizes: str | None,
    delays_ms: str | None,
    workers: str | None,
    output: Path,
    force: bool,
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
    from offpath.profiling.experiments import tune

    # Wrong options are refused before minutes of measuring.
    if output.is_dir():
        raise WrongOption(f"--output {str(output)!r} is a folder: expected a file's name")
    if output.exists() and not force:
        raise WrongOption(f"--output {str(output)!r} exists: pass --force to replace it")
    if outputs.json_path is not None and outputs.json_path.exists():
        raise WrongOption(f"--json {str(outputs.json_path)!r} exists: name another file")
    choices = tune.TuneChoices(
        **asked,
        batch_sizes=read_values("--batch-size", batch_sizes),
        delays_ms=read_values("--max-batch-delay-ms", delays_ms),
        workers=read_values("--workers", workers),
        command=run_outputs.command_line(),
    )
    with run_outputs.keeping(outputs, "windows"), LiveProgress() as progress:
        run = tune.run_tune(choices, progress, outputs.save)
    result = tune.read_result(run)
    if result.verdict.winner is not None:
        # The preset is written first: a failing page must not lose it.
        tune.write_preset(output, result)
    run_outputs.present(run, tune.document_of(run), outputs)
    if result.verdict.winner is None:
        raise ExpectedError(f"{result.verdict.text} (--p95-ms, --clients)")
    if result.verdict.winner == result.own:
        click.echo(f"keep the archive's setting: {result.own}; nothing to rebuild")
    else:
        click.echo(f"best: {result.verdict.winner}; build with: offpath archive --preset {output}")


def read_values(option: str, text: str | None) -> tuple[int, ...]:
    return () if text is None else read_numbers(option, text, "4,8")
