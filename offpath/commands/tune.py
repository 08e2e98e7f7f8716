"""`offpath tune`: searches the settings with the highest rate within a latency bound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands.load_options import CLIENTS_HELP
from offpath.commands.progress import LiveProgress
from offpath.commands.run_outputs import (
    FILE,
    Outputs,
    check_output,
    command_line,
    keeping,
    present,
    read_numbers,
)
from offpath.errors import ExpectedError, WrongOption

if TYPE_CHECKING:
    from offpath.profiling.experiments.tune_report import Result


@click.command("tune")
@click.option(
    "--p95-ms",
    type=click.FloatRange(0, min_open=True),
    required=True,
    help="Latency bound: 95 % of the replies must come within this time.",
)
@click.option(
    "--model",
    help="Model to build an archive of: near-free, resnet50 or efficientnet-lite0.",
)
@click.option("--mar", type=FILE, help="Your own archive instead of --model.")
@click.option(
    "--preset",
    help="Preset that the winner is compared with: cpu, t4 or a file.  [default: t4 where there is"
    " a GPU, else cpu; with --mar the archive's own settings]",
)
@click.option(
    "--workload",
    default="photos-55k",
    show_default=True,
    help="photos-1200k, photos-55k or a folder of images.",
)
@click.option("--clients", type=click.IntRange(1), default=32, show_default=True, help=CLIENTS_HELP)
@click.option(
    "--trials",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Number of candidates to measure, including the preset.",
)
@click.option(
    "--search",
    multiple=True,
    metavar="KEY=N,N,...",
    help="Values to search for batch_size, max_batch_delay_ms, workers or threads, beside the"
    " preset's. Can be repeated.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("tuned.yaml"),
    show_default=True,
    help="Preset file to write, for `offpath archive --preset FILE`.",
)
@click.option("--force", is_flag=True, help="Replace --output if it exists.")
@click.option("--json", "json_path", type=FILE, help="Save the raw values as they come.")
@click.option("--html", "html_path", type=FILE, help="Write one self-contained page.")
def command(
    search: tuple[str, ...],
    output: Path,
    force: bool,
    json_path: Path | None,
    html_path: Path | None,
    **asked: Any,
) -> None:
    """Search the settings with the highest rate within a latency bound.

    Searches batch size, max batch delay, workers and threads per worker. Starts a TorchServe,
    measures the preset and other candidates, then compares the best candidate with the preset in
    fresh, interleaved rounds. Ctrl-C stops the server; --json keeps the raw values so far.

    \b
    Examples:
      offpath tune --model near-free --p95-ms 100
      offpath tune --mar store/classifier.mar --p95-ms 200 --workload ~/images --html tune.html
      offpath tune --model near-free --p95-ms 100 --search workers=2,4 --search threads=1
      offpath archive --preset tuned.yaml --force
    """
    from offpath.profiling.experiments import tune_report
    from offpath.profiling.experiments.tune import TuneChoices, run_tune

    # Wrong options are refused before minutes of measuring.
    if output.is_dir():
        raise WrongOption(f"--output {str(output)!r} is a folder: expected a file's name")
    if output.exists() and not force:
        raise WrongOption(f"--output {str(output)!r} exists: pass --force to replace it")
    if (asked["model"] is None) == (asked["mar"] is None):
        raise WrongOption("expected one of --model NAME and --mar FILE")
    if json_path is not None and json_path.exists():
        raise WrongOption(f"--json {str(json_path)!r} exists: name another file")
    check_output(json_path, with_folder=True)
    check_output(html_path, "jinja2")
    outputs = Outputs(json_path=json_path, html_path=html_path)
    choices = TuneChoices(**asked, search=read_search(search), command=command_line())
    with keeping(outputs, "candidates"), LiveProgress() as progress:
        run = run_tune(choices, progress, outputs.save)
    result = tune_report.read_result(run)
    if result.verdict.winner is not None:
        # The preset is written first: a failing page must not lose it.
        tune_report.write_preset(output, result)
    present(run, tune_report.document_of(run), outputs)
    click.echo(describe_next_step(result, output))


def read_search(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Reads the values of --search."""
    search: dict[str, tuple[int, ...]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        if key in search:
            raise WrongOption(f"--search {text!r}: {key} has values already; give all of them once")
        search[key] = read_numbers(f"--search {key}", values, "1,2,4")
    return search


def describe_next_step(result: Result, preset: Path) -> str:
    """Tells what to do with the winner, whose settings the file `preset` holds.

    Raises:
        ExpectedError: there is no winner.
    """
    winner = result.verdict.winner
    if winner is None:
        raise ExpectedError(f"{result.verdict.text} (--p95-ms, --clients)")
    if winner != result.reference:
        return f"winner: {winner}; build with: offpath archive --preset {preset}"
    return f"keep the preset: {winner}; nothing to rebuild, {preset} holds the same settings"
