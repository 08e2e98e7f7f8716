"""`offpath tune`: the settings with the highest throughput within a latency, on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands.progress import LiveProgress
from offpath.commands.showing import (
    Outputs,
    command_line,
    keeping,
    output_options,
    present,
    read_numbers,
)
from offpath.handler.errors import ExpectedError

if TYPE_CHECKING:
    from offpath.profiling.core.run import Run
    from offpath.profiling.experiments.tune_experiment import TuneChoices

STUDY_DIR = Path(".offpath/tune")
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
    type=float,
    help="Bound: 95 % of the answers within this.  [default: a quarter above the preset's own]",
)
@click.option(
    "--workload",
    default="photos-55k",
    show_default=True,
    help="photos-1200k, photos-55k or a folder of photographs.",
)
@click.option("--model", help="near-free, resnet50 or efficientnet-lite0.")
@click.option(
    "--mar",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Your own archive instead.",
)
@click.option(
    "--preset",
    help="cpu, t4 or a file: what the winner is held against.  [default: t4 where there is a GPU,"
    " else cpu; or the .mar's own settings]",
)
@click.option("--clients", type=click.IntRange(1), default=32, show_default=True)
@click.option(
    "--trials",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Candidates to measure, the preset among them.",
)
@click.option("--batch-sizes", metavar="N,N,...", help="Choices to search among.")
@click.option("--max-batch-delays-ms", metavar="N,N,...", help="The same, of delays.")
@click.option("--workers", metavar="N,N,...", help="The same, of workers.")
@click.option("--threads", metavar="N,N,...", help="The same, of threads per worker.")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Windows of each candidate.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5),
    default=4,
    show_default=True,
    help="Length of a window.",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(0),
    default=3,
    show_default=True,
    help="Seconds of load before a candidate's first window.",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(0),
    default=10,
    show_default=True,
    help="Seconds of load before the first candidate: Java compiles meanwhile.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Fresh rounds of the winner and the preset at the end.",
)
@click.option(
    "--generator",
    type=click.Choice(["locust", "wrk"]),
    default="locust",
    show_default=True,
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("tuned.yaml"),
    show_default=True,
    help="Preset file for `offpath archive --preset FILE`.",
)
@click.option("--force", is_flag=True, help="Replace --output.")
@output_options
def command(outputs: Outputs, output: Path, force: bool, **asked: Any) -> None:
    """Search batch size, max batch delay, workers and threads for throughput within a latency.

    Starts a TorchServe of its own, measures the preset and further candidates over the register
    API, then the best one against the preset in fresh, interleaved rounds. Raw values go to --json
    (default .offpath/tune/MODEL-WORKLOAD.json). Ctrl-C keeps what was measured; the same command
    goes on. Another --p95-ms reads the same measurements anew.

    \b
    Examples:
      offpath tune --model near-free --p95-ms 100
      offpath tune --mar store/classifier.mar --workload ~/photographs --clients 8 --html tune.html
      offpath archive --preset tuned.yaml --force
    """
    from offpath.profiling.experiments.tune_experiment import TuneChoices
    from offpath.profiling.experiments.tune_report import check_writable

    # Before minutes of measuring, not after.
    check_writable(output, force)
    chosen = {
        setting: read_numbers(f"--{option.replace('_', '-')}", text, "1,2,4")
        for option, setting in SPACE_OPTIONS.items()
        if (text := asked.pop(option))
    }
    choices = TuneChoices(**asked, space=chosen, command=command_line())
    study = outputs.json_path or study_of(choices)
    run = search(choices, replace(outputs, json_path=study))
    finish(run, replace(outputs, json_path=study), output)


def search(choices: TuneChoices, outputs: Outputs) -> Run:
    """The whole search, or the rest of one."""
    from offpath.profiling.core.run import load_run
    from offpath.profiling.experiments.tune import run_tune

    study = outputs.json_path
    earlier = load_run(study, "tune") if study and study.exists() else None
    with keeping(outputs, "candidates"), LiveProgress() as progress:
        return run_tune(choices, progress, outputs.save, earlier)


def finish(run: Run, outputs: Outputs, output: Path) -> None:
    """Writes the preset, prints and draws; the last line says what to do.

    Raises:
        ExpectedError: no candidate within the bound, in the search or in the fresh rounds.
    """
    from offpath.profiling.experiments import tune_choice, tune_report

    verdict = tune_report.verdict_of(run)
    if verdict is not None and verdict.winner is not None:
        # Before the plots: what was searched for must not hang on a drawing.
        tune_report.write_preset(output, run, verdict)
    present(run, tune_report.document_of(run), outputs)
    if verdict is None:
        outcomes = tune_choice.read_trials(run).values()
        raise ExpectedError(
            tune_choice.explain_nothing_within(
                outcomes, tune_report.bound_of(run), run.settings["clients"]
            )
        )
    if verdict.winner is None:
        raise ExpectedError(verdict.text)
    click.echo(tune_report.format_outcome(run, verdict, output))


def study_of(choices: TuneChoices) -> Path:
    """One file for each model and workload."""
    model = choices.model or (choices.mar.stem if choices.mar else "")
    return STUDY_DIR / f"{model}-{Path(choices.workload).name}.json"
