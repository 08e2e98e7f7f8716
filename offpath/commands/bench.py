"""`offpath bench`: servers side by side, and the load that goes on for minutes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offpath.commands import bench_jvm, bench_log
from offpath.errors import ExpectedError

if TYPE_CHECKING:
    from profiling.result import BenchResult


@click.group()
def command() -> None:
    """Measures servers side by side, in one run, with the limits of the cores beside them."""


@command.command("compare")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    default=("photos-1200k", "photos-55k"),
    show_default=True,
    help="photos-1200k, photos-55k or a folder of photographs; may be given several times.",
)
@click.option(
    "--model",
    type=click.Choice(["near-free", "resnet50", "efficientnet-lite0"]),
    default="near-free",
    show_default=True,
    help="near-free (pool + linear) stands in for an accelerator.",
)
@click.option(
    "--servers",
    default="offpath,torchserve-stock,torchserve-fixed",
    show_default=True,
    help="Comma-separated, in the order of a round.",
)
@click.option(
    "--baseline",
    default="torchserve-stock",
    show_default=True,
    help="Server that the others are divided by.",
)
@click.option("--clients", type=click.IntRange(1), default=32, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(1), help="Length of a window.  [default: 10]"
)
@click.option(
    "--requests",
    type=click.IntRange(1),
    help="Replies in a window, instead of --seconds.",
)
@click.option("--warm-up", "warm_up_s", type=click.FloatRange(0), default=15, show_default=True,
              help="Seconds of load before each window.")  # fmt: skip
@click.option(
    "--generator",
    type=click.Choice(["locust", "wrk"]),
    default="locust",
    show_default=True,
    help="wrk is lighter where it is installed.",
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Raw values, saved after each server's round.",
)
@click.option(
    "--append",
    is_flag=True,
    help="Add rounds to the --json file; unlike runs are refused.",
)
@click.option(
    "--plot", "plot_path", type=click.Path(path_type=Path), help="FILE.svg or FILE.png."
)
def compare(
    workloads: tuple[str, ...],
    model: str,
    servers: str,
    baseline: str,
    clients: int,
    rounds: int,
    seconds: float | None,
    requests: int | None,
    warm_up_s: float,
    generator: str,
    seed: int,
    json_path: Path | None,
    append: bool,
    plot_path: Path | None,
) -> None:
    """Requests a second, latencies and CPU of servers on the same photographs and weights.

    Rounds are interleaved; each server starts afresh in each round and its answers are checked
    before it is measured. Ctrl-C keeps the finished rounds of --json.
    """
    # Imported here: `offpath bench --help` needs neither torch nor rich's live display.
    from rich.console import Console

    from offpath.commands.bench_progress import LiveProgress
    from profiling.plot import save_plot
    from profiling.report import print_report
    from profiling.result import save_result
    from profiling.session import BenchChoices, run_session

    if seconds is not None and requests is not None:
        raise click.UsageError("--seconds and --requests exclude each other")
    choices = BenchChoices(
        workloads=workloads,
        model=model,
        servers=tuple(servers.split(",")),
        generator=generator,
        clients=clients,
        rounds=rounds,
        seconds=None if requests else seconds or 10.0,
        requests=requests,
        warm_up_s=warm_up_s,
        seed=seed,
        command=command_line(),
    )
    base = baseline if baseline in choices.servers else None
    earlier = read_earlier(json_path, append)
    console = Console()
    with LiveProgress() as progress:
        result = run_session(
            choices,
            progress,
            lambda finished: save_result(finished, json_path) if json_path else None,
            earlier,
        )
    print_report(result, base, console)
    if plot_path is not None:
        save_plot(result, base, plot_path)
        console.print(f"plot: {plot_path}")
    if json_path is not None:
        console.print(f"raw values: {json_path}")


@command.command("show")
@click.argument("json_path", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--baseline", default="torchserve-stock", show_default=True)
@click.option(
    "--plot", "plot_path", type=click.Path(path_type=Path), help="FILE.svg or FILE.png."
)
def show(json_path: Path, baseline: str, plot_path: Path | None) -> None:
    """Prints (and draws) a saved result."""
    from rich.console import Console

    from profiling.plot import save_plot
    from profiling.report import print_report
    from profiling.result import load_result

    result = load_result(json_path)
    base = baseline if baseline in result.servers else None
    print_report(result, base, Console())
    if plot_path is not None:
        save_plot(result, base, plot_path)


@command.command("soak")
@click.option(
    "--minutes", type=click.FloatRange(min=0.1), default=10, show_default=True
)
@click.option(
    "--workload", default="photos-55k", show_default=True, help="The good items."
)
@click.option("--model", default="near-free", show_default=True)
@click.option("--clients", type=click.IntRange(1), default=16, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False))
def soak(
    minutes: float,
    workload: str,
    model: str,
    clients: int,
    seed: int,
    json_path: Path | None,
) -> None:
    """Mixed good and bad items against our server: statuses, restarts, the workers' memory.

    Exits with 1 when a 5xx, a lost reply or a worker's restart was seen.
    """
    from rich.console import Console

    from offpath.commands.bench_progress import LiveProgress
    from profiling.soak import SoakChoices, run_soak
    from profiling.soak_report import print_soak, save_soak

    choices = SoakChoices(minutes, workload, model, clients, seed, command_line())
    with LiveProgress() as progress:
        result = run_soak(choices, progress)
    print_soak(result, Console())
    if json_path is not None:
        save_soak(result, json_path)
    if result.problems:
        raise ExpectedError("the soak failed: " + "; ".join(result.problems))


def command_line() -> str:
    """The command line as typed, with `offpath` for the program's path."""
    return shlex.join(["offpath", *sys.argv[1:]])


def read_earlier(json_path: Path | None, append: bool) -> BenchResult | None:
    """The result to continue, None for a new one; never overwrites one silently."""
    from profiling.result import load_result

    if json_path is None or not json_path.exists():
        return None
    if not append:
        raise ExpectedError(
            f"result {str(json_path)!r} exists: add rounds to it with --append, or name another"
        )
    return load_result(json_path)


for subcommand in (
    bench_jvm.command,
    bench_log.log_rounds,
    bench_log.log_outage,
    bench_log.log_cost,
):
    command.add_command(subcommand)
