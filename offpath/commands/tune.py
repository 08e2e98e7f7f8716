"""`offpath tune`: searches the settings with the highest rate within a latency bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands.load_options import load_options
from offpath.commands.progress import LiveProgress
from offpath.commands.run_outputs import (
    Outputs,
    command_line,
    keeping,
    output_options,
    present,
    read_numbers,
)
from offpath.handler.errors import ExpectedError, WrongOption

if TYPE_CHECKING:
    from offpath.profiling.core.run import Run
    from offpath.profiling.experiments.tune_report import Result

# Option -> field of a setting.
SPACE_OPTIONS = {
    "batch_sizes": "batch_size",
    "max_batch_delays_ms": "max_batch_delay_ms",
    "workers": "workers",
    "threads": "threads",
}


@click.command("tune")
@click.option(
    "--p95-ms",
    type=click.FloatRange(0, min_open=True),
    help="Latency bound: 95 % of the replies must come within this time.  [default: a quarter"
    " above the preset's own p95]",
)
@click.option(
    "--workload",
    default="photos-55k",
    show_default=True,
    help="photos-1200k, photos-55k or a folder of images.",
)
@click.option(
    "--model",
    help="Model to build an archive of: near-free, resnet50 or efficientnet-lite0.",
)
@click.option(
    "--mar",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Your own archive instead of --model.",
)
@click.option(
    "--preset",
    help="Preset that the winner is compared with: cpu, t4 or a file.  [default: t4 where there is"
    " a GPU, else cpu; with --mar the archive's own settings]",
)
@click.option(
    "--trials",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Number of candidates to measure, including the preset.",
)
@click.option("--batch-sizes", metavar="N,N,...", help="Batch sizes to search.")
@click.option("--max-batch-delays-ms", metavar="N,N,...", help="Max batch delays to search.")
@click.option("--workers", metavar="N,N,...", help="Numbers of workers to search.")
@click.option("--threads", metavar="N,N,...", help="Numbers of threads per worker to search.")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Measured windows of each candidate.",
)
@load_options(
    clients=32,
    seconds=4,
    least_s=0.5,
    warm_up_s=3,
    warm_up_help="Seconds of load before a candidate's first window.",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(0),
    default=10,
    show_default=True,
    help="Seconds of load before the first candidate, while Java compiles.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Fresh rounds of the preset and the best other candidate at the end.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("tuned.yaml"),
    show_default=True,
    help="Preset file to write, for `offpath archive --preset FILE`.",
)
@click.option("--force", is_flag=True, help="Replace --output if it exists.")
@output_options
def command(outputs: Outputs, output: Path, force: bool, **asked: Any) -> None:
    """Search the settings with the highest rate within a latency bound.

    Searches batch size, max batch delay, workers and threads per worker. Starts a TorchServe,
    measures the preset and other candidates, then compares the best candidate with the preset in
    fresh, interleaved rounds. Ctrl-C stops the server; --json keeps the raw values so far.

    \b
    Examples:
      offpath tune --model near-free --p95-ms 100
      offpath tune --mar store/classifier.mar --workload ~/images --clients 8 --html tune.html
      offpath archive --preset tuned.yaml --force
    """
    from offpath.profiling.experiments.tune import TuneChoices, run_tune

    # Wrong options are refused before minutes of measuring.
    check_output(output, force)
    if (asked["model"] is None) == (asked["mar"] is None):
        raise WrongOption("expected one of --model NAME and --mar FILE")
    path = outputs.json_path
    if path is not None and path.exists():
        raise WrongOption(f"--json {str(path)!r} exists: name another file")
    space = {
        setting: read_numbers(f"--{option.replace('_', '-')}", text, "1,2,4")
        for option, setting in SPACE_OPTIONS.items()
        if (text := asked.pop(option))
    }
    choices = TuneChoices(**asked, space=space, command=command_line())
    with keeping(outputs, "candidates"), LiveProgress() as progress:
        run = run_tune(choices, progress, outputs.save)
    finish(run, outputs, output)


def check_output(path: Path, force: bool) -> None:
    """Raises WrongOption if the preset cannot be written or would replace a file unasked."""
    if path.is_dir():
        raise WrongOption(f"--output {str(path)!r} is a folder: expected a file's name")
    if path.exists() and not force:
        raise WrongOption(f"--output {str(path)!r} exists: pass --force to replace it")


def finish(run: Run, outputs: Outputs, output: Path) -> None:
    """Writes the preset, prints and draws the result, and ends with what to do next.

    Raises:
        ExpectedError: no candidate was within the bound, in the search or in the fresh rounds.
    """
    from offpath.profiling.experiments import tune_report

    result = tune_report.read_result(run)
    verdict = result.verdict
    if verdict is not None and verdict.winner is not None:
        # The preset is written first: a failing plot must not lose it.
        tune_report.write_preset(output, result)
    present(run, tune_report.document_of(run), outputs)
    if verdict is None:
        reason = tune_report.explain_nothing_within(
            result.ranked, result.bound_ms, run.settings["clients"]
        )
        raise ExpectedError(f"{reason} (--p95-ms, --clients)")
    if verdict.winner is None:
        raise ExpectedError(f"{verdict.text} (--p95-ms, --seconds, --clients)")
    click.echo(describe_next_step(result, output))


def describe_next_step(result: Result, preset: Path) -> str:
    """Tells what to do with the winner, whose settings the file `preset` holds."""
    winner = result.describe_winner()
    if result.is_better:
        return f"winner: {winner}; build with: offpath archive --preset {preset}"
    return f"keep the preset: {winner}; nothing to rebuild, {preset} holds the same settings"
