"""`offpath bench`: servers side by side."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_setup, run_outputs
from offpath.commands.run_outputs import Outputs, fail_if_left_out
from offpath.commands.shared_options import CLIENTS_HELP, MODELS
from offpath.errors import WrongOption

if TYPE_CHECKING:
    from offpath.profiling.core.run import Run
    from offpath.profiling.experiments.compare import Choices
    from offpath.profiling.report.document import Document

# 20 batches of 8: a slow model's window goes on until it has them, for a minute at most.
MIN_REPLIES = 160
SECONDS = 10.0
# Experiment of a saved run -> module whose `document_of(run, baseline)` shows it.
EXPERIMENTS = {
    "compare": "experiments.compare_report",
    **dict.fromkeys(
        ("profile-stages", "profile-cprofile", "profile-lines", "profile-flame"),
        "profilers.profile_report",
    ),
    "profile-server": "experiments.server_profile",
    "tune": "experiments.grid_search",
}


def read_model(_: click.Context, __: click.Parameter, value: str) -> str:
    """Returns a model's name, or the user's archive as an absolute path for the servers."""
    if value in MODELS:
        return value
    path = Path(value)
    if path.suffix == ".mar" and path.is_file():
        return str(path.resolve())
    what = "no such file" if path.suffix == ".mar" else "no such model"
    raise click.BadParameter(f"{value!r}: {what}; there are: {', '.join(MODELS)}, or a .mar file")


baseline_option = click.option(
    "--baseline",
    help="Variant that the others are compared with.  [default: torchserve-stock where it was"
    " measured]",
)


@click.group()
def command() -> None:
    """Measure servers side by side, in one run, beside the limits of the cores."""


@command.command("compare")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    default=("photos-1200k", "photos-55k"),
    show_default=True,
    help="Images to send: photos-1200k, photos-55k (made at first use) or a folder."
    " Can be repeated.",
)
@click.option(
    "--model",
    callback=read_model,
    metavar=f"[{'|'.join(MODELS)}|FILE.mar]",
    default="near-free",
    show_default=True,
    help="Model that all servers load. near-free (pool + linear) stands in for an accelerator. A"
    " .mar gives its model, weights, labels and preprocessing.",
)
@click.option(
    "--servers",
    default="offpath,torchserve-stock,torchserve-fixed",
    show_default=True,
    help="Servers to measure, comma-separated, in the order of a round. docs/benchmark.md describes"
    " all; an unknown name lists them.",
)
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME=SERVER:KEY=VALUE;...",
    help="A TorchServe server with other settings, measured after --servers. Can be repeated. KEY:"
    " a key of config.properties, vmargs+ (further options for Java), model.batch_size,"
    " model.max_batch_delay_ms, model.workers, handler.SETTING, env.NAME.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Number of workers of each server.  [default: one per core]",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Largest batch of each server; 1 for no batching.",
)
@baseline_option
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of times that everything is measured.",
)
@click.option(
    "--clients",
    type=run_outputs.Numbers(),
    default="32",
    show_default=True,
    help=f"{CLIENTS_HELP} Of several numbers, charts show lines. With --rate: connections.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.5),
    help=f"Length of a window.  [default: {SECONDS:g}, and until there are {MIN_REPLIES} replies,"
    " a minute at most]",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Open loop: this many requests per second on average, at random times; latency counts"
    " from the time a request was due.",
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
    "--generator",
    type=click.Choice(["locust", "wrk"]),
    default="locust",
    show_default=True,
    help="Program that sends the load. wrk needs less CPU and must be installed.",
)
@click.option(
    "--side-by-side",
    is_flag=True,
    help="Start each server once, keep all running and let them take turns. On cores whose speed"
    " changes, take short windows in many rounds. Needs the memory of all servers together.",
)
@run_outputs.output_options
def compare(
    servers: str,
    baseline: str | None,
    outputs: Outputs,
    seconds: float | None,
    rate: float | None,
    warm_up_s: float,
    generator: str,
    **asked: Any,
) -> None:
    """Compare servers: requests per second, latencies, CPU, memory, on the same photographs.

    Rounds are interleaved. Each server is started again in each round (or once, with
    --side-by-side), and its answers are checked before it is measured. A server that fails is left
    out with a message, and the others go on. Ctrl-C keeps what --json has.
    """
    # Imported here: `offpath bench --help` needs neither torch nor polars.
    from offpath.profiling.experiments.compare import Choices
    from offpath.profiling.load.generators import Load

    load = Load(
        seconds=SECONDS if seconds is None else seconds,
        warm_up_s=warm_up_s,
        rate=rate,
        min_replies=MIN_REPLIES if seconds is None else 0,
        generator=generator,
    )
    choices = Choices(
        servers=run_outputs.split_names(servers),
        load=load,
        command=run_outputs.command_line(),
        **asked,
    )
    measure_and_show(choices, outputs, baseline)


@command.command("show")
@click.argument("path", metavar="JSON_PATH", type=run_outputs.FILE)
@baseline_option
@run_outputs.HTML
@click.option(
    "--plot", "plot_path", type=run_outputs.FILE, help="Draw the main charts into FILE.svg."
)
@click.option("--markdown", is_flag=True, help="Print Markdown tables for a README or an issue.")
def show(path: Path, baseline: str | None, **chosen: Any) -> None:
    """Print (and draw) a saved result of `offpath bench`, `offpath profile` or `offpath tune`."""
    from offpath.profiling.core.run import load_run

    run_outputs.check_output(chosen["html_path"], "jinja2")
    run_outputs.check_output(chosen["plot_path"], "matplotlib")
    show_run(load_run(path), Outputs(**chosen), baseline)


command.add_command(bench_setup.setup)


def show_run(run: Run, outputs: Outputs, baseline: str | None) -> None:
    """Prints and writes the report.

    Raises:
        UsageError: the baseline names a variant that the run does not have.
    """
    names = {row.variant for row in run.rows}
    if baseline is not None and baseline not in names:
        raise click.UsageError(
            f"--baseline {baseline!r}: expected one of {', '.join(sorted(names))}"
        )
    run_outputs.present(run, document_of(run, baseline), outputs)


def document_of(run: Run, baseline: str | None) -> Document:
    """Returns everything that is shown of a run; raises WrongOption for an unknown experiment."""
    if run.experiment not in EXPERIMENTS:
        raise WrongOption(
            f"no experiment {run.experiment!r} is known here; there are: {', '.join(EXPERIMENTS)}"
        )
    module = import_module(f"offpath.profiling.{EXPERIMENTS[run.experiment]}")
    document: Document = module.document_of(run, baseline)
    return document


def measure_and_show(choices: Choices, outputs: Outputs, baseline: str | None) -> None:
    """Runs a comparison from its choices to its report.

    Raises:
        ExpectedError: what `run_compare` and `show_run` raise; the file of --json exists; a
            variant was left out.
    """
    # Imported here: `offpath bench --help` needs no polars.
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.experiments.compare import run_compare

    run_outputs.refuse_existing("--json", outputs.json_path)

    def save(run: Run) -> None:
        if run.rows:
            outputs.save(run)
        elif not run.failures:
            # The first call, which comes when all options are accepted.
            run_outputs.say_estimate(choices.estimated_s)

    with run_outputs.keeping(outputs, "windows"), LiveProgress() as progress:
        run = run_compare(choices, progress, save)
    show_run(run, outputs, baseline)
    fail_if_left_out(run)
