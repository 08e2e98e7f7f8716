"""`offpath tune`: the settings with the highest throughput within a latency, on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands.bench_options import command_line
from offpath.handler.errors import ExpectedError
from offpath.serving.interrupts import Terminated, stopping_on_signals

if TYPE_CHECKING:
    from rich.console import Console

    from offpath.profiling.experiments.tuning.choice import Verdict
    from offpath.profiling.experiments.tuning.result import TuneResult
    from offpath.profiling.experiments.tuning.search import TuneChoices

STUDY_DIR = Path(".offpath/tune")
# Option -> setting of the search space.
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
    help="cpu, t4 or a file: what the winner is held against.  [default: cpu, or the .mar's own"
    " settings]",
)
@click.option("--clients", type=click.IntRange(1), default=32, show_default=True)
@click.option(
    "--trials",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Candidates to measure, the preset among them.",
)
@click.option(
    "--sampler",
    type=click.Choice(["tpe", "grid"]),
    default="tpe",
    show_default=True,
    help="Optuna's TPE, or all combinations in random order.",
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
    "--study",
    "study_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"Raw values, and where an interrupted search goes on."
    f"  [default: {STUDY_DIR}/MODEL-WORKLOAD.json]",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("tuned.yaml"),
    show_default=True,
    help="Preset file for `offpath archive --preset FILE`.",
)
@click.option("--force", is_flag=True, help="Replace --output.")
@click.option(
    "--plot", "plot_path", type=click.Path(path_type=Path), help="FILE.svg or FILE.png."
)
@click.option("--html", "html_path", type=click.Path(path_type=Path), help="FILE.html.")
def command(**options: Any) -> None:
    """Search batch size, max batch delay, workers and threads for throughput within a latency.

    Starts a TorchServe of its own, measures the preset and further candidates over the register
    API, then the best one against the preset in fresh, interleaved rounds. Ctrl-C keeps what was
    measured; the same command goes on. Another --p95-ms reads the same measurements anew.

    \b
    Examples:
      offpath tune --model near-free --p95-ms 100
      offpath tune --mar store/classifier.mar --workload ~/photographs --clients 8 --html tune.html
      offpath archive --preset tuned.yaml --force
    """
    from offpath.profiling.experiments.tuning.plot import check_suffix
    from offpath.profiling.experiments.tuning.preset import check_writable
    from offpath.profiling.experiments.tuning.search import TuneChoices

    choices = TuneChoices(
        command=command_line(),
        space={
            setting: read_choices(option, options[option])
            for option, setting in SPACE_OPTIONS.items()
            if options[option]
        },
        **{
            name: options[name]
            for name in (
                *("p95_ms", "workload", "model", "mar", "preset", "clients", "trials"),
                *("repeats", "rounds", "seconds", "warm_up_s", "sampler", "generator"),
                "seed",
                "settle_s",
            )
        },
    )
    # Before minutes of measuring, not after.
    check_writable(options["output"], options["force"])
    if options["plot_path"]:
        check_suffix(options["plot_path"])
    tune(choices, options["study_path"] or study_of(choices), options)


def tune(choices: TuneChoices, study: Path, options: dict[str, Any]) -> None:
    """Searches, prints, draws and writes the preset.

    Raises:
        ExpectedError: no candidate within the bound, in the search or in the fresh rounds.
    """
    from rich.console import Console

    from offpath.commands.tune_progress import TuneProgress
    from offpath.profiling.experiments.tuning import choice, report
    from offpath.profiling.experiments.tuning.preset import write_preset
    from offpath.profiling.experiments.tuning.result import TUNING
    from offpath.profiling.experiments.tuning.search import run_tuning

    earlier = TUNING.load(study) if study.exists() else None
    with keeping(study), stopping(), TuneProgress() as progress:
        result, archive = run_tuning(
            choices,
            progress,
            lambda measured: TUNING.save(measured, study),
            earlier,
            study,
        )
    p95_ms = choice.find_bound(choices.p95_ms, result.trials, result.reference)
    verdict = judge_result(result, p95_ms)
    if verdict is not None and verdict.winner is not None:
        # Before the plots: what was searched for must not hang on a drawing.
        write_preset(options["output"], archive.preset, result, verdict)
    console = Console()
    render_tuning(
        result, p95_ms, verdict, options["plot_path"], options["html_path"], console
    )
    console.print(f"raw values: {study}", highlight=False, soft_wrap=True)
    if verdict is None:
        summaries = choice.summarise_trials(result.trials)
        raise ExpectedError(
            choice.explain_nothing_within(summaries, p95_ms, choices.clients)
        )
    if verdict.winner is None:
        raise ExpectedError(verdict.text)
    outcome = report.format_outcome(result, verdict, p95_ms, str(options["output"]))
    console.print(outcome, highlight=False, soft_wrap=True)


def render_tuning(
    result: TuneResult,
    p95_ms: float,
    verdict: Verdict | None,
    plot_path: Path | None,
    html_path: Path | None,
    console: Console,
) -> None:
    """Prints the tables, draws what was asked for."""
    from offpath.profiling.experiments.tuning.plot import save_html, save_plot
    from offpath.profiling.experiments.tuning.report import print_tuning

    print_tuning(result, p95_ms, verdict, console)
    if html_path is not None:
        save_html(result, p95_ms, verdict, html_path)
    if plot_path is not None:
        save_plot(result, p95_ms, verdict, plot_path)


def judge_result(result: TuneResult, p95_ms: float) -> Verdict | None:
    """The verdict of the fresh rounds, None where there were none."""
    from offpath.profiling.experiments.tuning.choice import judge

    return judge(result.finals, result.reference, p95_ms) if result.finals else None


def study_of(choices: TuneChoices) -> Path:
    """One file for each model and workload."""
    model = choices.model or (choices.mar.stem if choices.mar else "")
    return STUDY_DIR / f"{model}-{Path(choices.workload).name}.json"


def read_choices(option: str, text: str) -> tuple[int, ...]:
    """Comma-separated whole numbers from 1."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise ExpectedError(
            f"--{option.replace('_', '-')} {text!r}: expected whole numbers from 1, as in 1,2,4"
        )
    return numbers


@contextlib.contextmanager
def keeping(study: Path) -> Iterator[None]:
    """Says at Ctrl-C where the search goes on."""
    try:
        yield
    except KeyboardInterrupt:
        if study.exists():
            click.echo(
                f"stopped; {study} keeps what was measured: the same command goes on",
                err=True,
            )
        raise


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """SIGTERM ends the server as Ctrl-C does: without it, it would outlive this process."""
    try:
        with stopping_on_signals():
            yield
    except Terminated:
        raise SystemExit(143) from None
