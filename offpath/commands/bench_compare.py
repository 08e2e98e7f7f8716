"""`offpath bench compare`: servers side by side in interleaved rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options
from offpath.handler.errors import ExpectedError

if TYPE_CHECKING:
    from offpath.profiling.core.result import BenchResult
    from offpath.profiling.experiments.session import BenchChoices

DEFAULT_SECONDS = 10.0
# 20 batches of 8: a slow model's window goes on until it has them, or for a minute.
MIN_REPLIES = 160


@click.command("compare")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    default=("photos-1200k", "photos-55k"),
    show_default=True,
    help="photos-1200k, photos-55k or a folder of photographs; may be given several times.",
)
@options.model_option
@options.servers_option
@options.baseline_option
@click.option(
    "--clients",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Closed loop: how many send and wait. With --rate: connections.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Open loop: Poisson arrivals a second; latency counts from the time a request was due.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(1),
    help=f"Length of a window.  [default: {DEFAULT_SECONDS:g}, and on until {MIN_REPLIES}"
    " replies, a minute at most]",
)
@click.option(
    "--requests",
    type=click.IntRange(1),
    help="Replies in a window, instead of --seconds.",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(0),
    default=20,
    show_default=True,
    help="Seconds of load before each window; Java compiles for tens of seconds.",
)
@click.option(
    "--tries",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="A window during which something else was busy on the cores is measured again, so often"
    " at most.",
)
@click.option(
    "--side-by-side",
    is_flag=True,
    help="Start each server once, keep all running and let them take turns: on cores whose speed"
    " changes, short windows in many rounds. Needs the memory of all.",
)
@click.option(
    "--cold-start",
    is_flag=True,
    help="Compare the first request after each start with the median of the next 50.",
)
@options.generator_option
@options.seed_option
@options.json_option
@click.option(
    "--append",
    is_flag=True,
    help="Add rounds to the --json file; unlike runs are refused.",
)
@options.plot_option
@options.html_option
def command(
    baseline: str,
    json_path: Path | None,
    append: bool,
    plot_path: Path | None,
    html_path: Path | None,
    **asked: Any,
) -> None:
    """Requests a second, latencies, CPU and memory of servers on the same photographs and weights.

    Rounds are interleaved; each server starts afresh in each round (or once, --side-by-side) and
    its answers are checked before it is measured. One that fails is left out and said; the others
    go on. Ctrl-C keeps the finished rounds of --json.
    """
    # Imported here: `offpath bench --help` needs neither torch nor rich's live display.
    from rich.console import Console

    from offpath.commands.bench_progress import LiveProgress
    from offpath.profiling.core.result import BENCH
    from offpath.profiling.experiments.session import estimate_s, run_session

    choices = make_choices(**asked)
    base = baseline if baseline in choices.servers else None
    earlier = options.read_earlier(json_path, append)

    options.say_estimate(estimate_s(choices))
    with options.keeping(json_path, "rounds"), LiveProgress() as progress:
        result = run_session(
            choices, progress, options.saving(BENCH, json_path), earlier
        )
    console = Console()
    render(result, base, plot_path, html_path, console)
    if json_path is not None:
        console.print(f"raw values: {json_path}")
    if result.failures:
        names = ", ".join(dict.fromkeys(failure.server for failure in result.failures))
        raise ExpectedError(f"left out after a failure, see above: {names}")


def make_choices(
    workloads: tuple[str, ...],
    model: str,
    servers: str,
    generator: str,
    rounds: int,
    cold_start: bool,
    tries: int,
    side_by_side: bool,
    seconds: float | None,
    requests: int | None,
    **load: Any,
) -> BenchChoices:
    """The choices of the command line; raises UsageError when they exclude each other."""
    from offpath.profiling.experiments.bench import Windows
    from offpath.profiling.experiments.session import BenchChoices

    if seconds is not None and requests is not None:
        raise click.UsageError("--seconds and --requests exclude each other")
    is_default = seconds is None and requests is None
    windows = Windows(
        seconds=DEFAULT_SECONDS if is_default else seconds,
        requests=requests,
        min_replies=MIN_REPLIES if is_default else 0,
        **load,
    )
    return BenchChoices(
        workloads=workloads,
        model=model,
        servers=options.split_names(servers),
        generator=generator,
        rounds=rounds,
        windows=windows,
        cold_start=cold_start,
        command=options.command_line(),
        tries=tries,
        side_by_side=side_by_side,
    )


def render(
    result: BenchResult,
    baseline: str | None,
    plot_path: Path | None,
    html_path: Path | None,
    console: Any,
) -> None:
    """Prints the tables, draws what was asked for."""
    from offpath.profiling.report.report import print_report

    print_report(result, baseline, console)
    if plot_path is not None:
        from offpath.profiling.report.plot import save_plot

        save_plot(result, baseline, plot_path)
        console.print(f"plot: {plot_path}")
    if html_path is not None:
        from offpath.profiling.report.bench_page import write_bench_page

        write_bench_page(result, html_path, baseline)
        console.print(f"page: {html_path}")
