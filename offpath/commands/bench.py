"""`offpath bench`: servers side by side."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offpath.commands.bench_setup import setup
from offpath.commands.declared_options import argument, option, takes_options
from offpath.commands.run_outputs import (
    PAGE_HELP,
    Numbers,
    Outputs,
    command_line,
    fail_if_left_out,
    measuring,
    present,
    refuse_existing,
    split_names,
)
from offpath.commands.shared_options import ARCHIVE, CLIENTS_HELP, FILE, MODELS
from offpath.errors import WrongOption

if TYPE_CHECKING:
    from offpath.profiling.core.run import Run
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
    "tune": "experiments.grid_search",
}


def read_model(_: click.Context, __: click.Parameter, value: str) -> str:
    """Returns a model's name, or the user's archive as an absolute path for the servers."""
    if value in MODELS:
        return value
    try:
        return str(ARCHIVE.convert(value).resolve())
    except WrongOption as error:
        raise click.BadParameter(
            f"{value!r}: no such model; there are: {', '.join(MODELS)}, or your archive: {error}"
        ) from error


BASELINE_HELP = (
    "Variant that the others are compared with.  [default: torchserve-stock where it was measured]"
)


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `offpath bench compare`."""

    workloads: tuple[str, ...] = option(
        "Images to send: photos-1200k, photos-55k (made at first use) or a folder."
        " Can be repeated.",
        "--workload",
        multiple=True,
        default=("photos-1200k", "photos-55k"),
    )
    model: str = option(
        "Model that all servers load. near-free (pool + linear) stands in for an accelerator. A"
        " .mar gives its model, weights, labels and preprocessing.",
        "--model",
        "--mar",
        callback=read_model,
        metavar=f"[{'|'.join(MODELS)}|PATH.mar|NAME]",
        default="near-free",
    )
    servers: str = option(
        "Servers to measure, comma-separated, in the order of a round. docs/benchmark.md describes"
        " all; an unknown name lists them.",
        default="offpath,torchserve-stock,torchserve-fixed",
    )
    variants: tuple[str, ...] = option(
        "A TorchServe server with other settings, measured after --servers. Can be repeated. KEY:"
        " a key of config.properties, vmargs+ (further options for Java), model.batch_size,"
        " model.max_batch_delay_ms, model.workers, handler.SETTING, env.NAME.",
        "--variant",
        multiple=True,
        metavar="NAME=SERVER:KEY=VALUE;...",
    )
    workers: int | None = option(
        "Number of workers of each server.  [default: one per core]", type=click.IntRange(1)
    )
    batch_size: int = option(
        "Largest batch of each server; 1 for no batching.", type=click.IntRange(1), default=8
    )
    baseline: str | None = option(BASELINE_HELP)
    rounds: int = option(
        "Number of times that everything is measured.", type=click.IntRange(1), default=3
    )
    clients: tuple[int, ...] = option(
        f"{CLIENTS_HELP} Of several numbers, charts show lines. With --rate: connections.",
        type=Numbers(),
        default="32",
    )
    seconds: float | None = option(
        f"Length of a window.  [default: {SECONDS:g}, and until there are {MIN_REPLIES} replies,"
        " a minute at most]",
        type=click.FloatRange(0.5),
    )
    rates: tuple[int, ...] | None = option(
        "Open loop: so many requests per second on average, at random times; latency counts"
        " from the time a request was due. Of several rates, charts show lines.",
        "--rate",
        type=Numbers(),
    )
    give_up_s: float | None = option(
        "Seconds after which a client gives up and closes its connection; its request has failed.",
        "--give-up",
        type=click.FloatRange(0.1),
    )
    warm_up_s: float = option(
        "Seconds of load before each window; Java compiles for tens of seconds.",
        "--warm-up",
        type=click.FloatRange(0),
        default=20,
    )
    generator: str = option(
        "Program that sends the load. wrk needs less CPU and must be installed.",
        type=click.Choice(["locust", "wrk"]),
        default="locust",
    )
    side_by_side: bool = option(
        "Start each server once, keep all running and let them take turns. On cores whose speed"
        " changes, take short windows in many rounds. Needs the memory of all servers together."
    )
    outputs: Outputs


@click.group()
def command() -> None:
    """Measure servers side by side, in one run, beside the limits of the cores."""


@command.command("compare")
@takes_options
def compare(options: CompareOptions) -> None:
    """Compare servers: requests per second, latencies, CPU, memory, on the same photographs.

    Rounds are interleaved. Each server is started again in each round (or once, with
    --side-by-side), and its answers are checked before it is measured. A server that fails is left
    out with a message, and the others go on. Ctrl-C keeps what --json has.
    """
    # Imported here: `offpath bench --help` needs neither torch nor polars.
    from offpath.profiling.experiments.compare import Choices, run_compare
    from offpath.profiling.load.generators import Load

    load = Load(
        seconds=SECONDS if options.seconds is None else options.seconds,
        warm_up_s=options.warm_up_s,
        rate=max(options.rates or (), default=None),
        min_replies=MIN_REPLIES if options.seconds is None else 0,
        generator=options.generator,
        give_up_s=options.give_up_s,
    )
    choices = Choices(
        workloads=options.workloads,
        model=options.model,
        servers=split_names(options.servers),
        clients=options.clients,
        load=load,
        rounds=options.rounds,
        command=command_line(),
        variants=options.variants,
        side_by_side=options.side_by_side,
        batch_size=options.batch_size,
        workers=options.workers,
        rates=options.rates or (),
    )
    outputs = options.outputs
    refuse_existing("--json", outputs.json_path)

    def save(run: Run) -> None:
        if run.rows:
            outputs.save(run)
        elif not run.failures:
            # The first call, which comes when all options are accepted.
            minutes = max(1, round(choices.estimated_s / 60))
            click.echo(
                f"takes about {minutes} min, plus the time to build what is missing", err=True
            )

    with measuring(outputs, "windows") as progress:
        run = run_compare(choices, progress, save)
    show_run(run, outputs, options.baseline)
    fail_if_left_out(run)


@command.command("show")
@takes_options
def show(
    path: Path = argument("JSON_PATH", type=FILE),
    baseline: str | None = option(BASELINE_HELP),
    html_path: Path | None = option(PAGE_HELP, "--html", type=FILE),
    plot_path: Path | None = option("Draw the main charts into FILE.svg.", "--plot", type=FILE),
    markdown: bool = option("Print Markdown tables for a README or an issue."),
) -> None:
    """Print (and draw) a saved result of `offpath bench`, `offpath profile` or `offpath tune`."""
    from offpath.profiling.core.run import load_run

    outputs = Outputs(None, html_path, plot_path, markdown)
    show_run(load_run(path), outputs, baseline)


command.add_command(setup)


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
    present(run, document_of(run, baseline), outputs)


def document_of(run: Run, baseline: str | None) -> Document:
    """Returns everything that is shown of a run; raises WrongOption for an unknown experiment."""
    if run.experiment not in EXPERIMENTS:
        raise WrongOption(
            f"no experiment {run.experiment!r} is known here; there are: {', '.join(EXPERIMENTS)}"
        )
    module = import_module(f"offpath.profiling.{EXPERIMENTS[run.experiment]}")
    document: Document = module.document_of(run, baseline)
    return document
