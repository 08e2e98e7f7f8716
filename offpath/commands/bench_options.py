"""Options that the subcommands of `offpath bench` share, and a run from measuring to its report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from offpath.commands import run_outputs
from offpath.commands.run_outputs import Outputs
from offpath.errors import ExpectedError, WrongOption

if TYPE_CHECKING:
    from offpath.profiling.core.run import Run
    from offpath.profiling.experiments.compare import Choices

DEFAULT_SERVERS = "offpath,torchserve-stock,torchserve-fixed"

MODELS = ("near-free", "resnet50", "efficientnet-lite0")


def read_model(_: click.Context, __: click.Parameter, value: str) -> str:
    """Returns a model's name, or the user's archive as an absolute path for the servers."""
    if value in MODELS:
        return value
    path = Path(value)
    if path.suffix == ".mar" and path.is_file():
        return str(path.resolve())
    what = "no such file" if path.suffix == ".mar" else "no such model"
    raise click.BadParameter(f"{value!r}: {what}; there are: {', '.join(MODELS)}, or a .mar file")


model_option = click.option(
    "--model",
    callback=read_model,
    metavar=f"[{'|'.join(MODELS)}|FILE.mar]",
    default="near-free",
    show_default=True,
    help="Model that all servers load. near-free (pool + linear) stands in for an accelerator. A"
    " .mar gives its model, weights, labels and preprocessing.",
)
variants_option = click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME=SERVER:KEY=VALUE;...",
    help="A TorchServe server with other settings, measured after --servers. Can be repeated. KEY:"
    " a key of config.properties, vmargs+ (further options for Java), model.batch_size,"
    " model.max_batch_delay_ms, model.workers, handler.SETTING, env.NAME.",
)
servers_option = click.option(
    "--servers",
    default=DEFAULT_SERVERS,
    show_default=True,
    help="Servers to measure, comma-separated, in the order of a round. docs/servers.md describes"
    " all; an unknown name lists them.",
)
batch_size_option = click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Largest batch of each server; 1 for no batching.",
)

baseline_option = click.option(
    "--baseline",
    help="Variant that the others are compared with.  [default: torchserve-stock where it was"
    " measured]",
)


workloads_option = click.option(
    "--workload",
    "workloads",
    multiple=True,
    default=("photos-1200k", "photos-55k"),
    show_default=True,
    help="Images to send: photos-1200k, photos-55k (made at first use) or a folder."
    " Can be repeated.",
)
rounds_option = click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of times that everything is measured.",
)


def show_run(run: Run, outputs: Outputs, baseline: str | None) -> None:
    """Prints and writes the report.

    Raises:
        UsageError: the baseline names a variant that the run does not have.
    """
    from offpath.profiling.experiments.registry import document_of

    names = {row.variant for row in run.rows}
    if baseline is not None and baseline not in names:
        raise click.UsageError(
            f"--baseline {baseline!r}: expected one of {', '.join(sorted(names))}"
        )
    run_outputs.present(run, document_of(run, baseline), outputs)


def measure_and_show(choices: Choices, outputs: Outputs, baseline: str | None) -> None:
    """Runs a comparison from its choices to its report.

    Raises:
        ExpectedError: what `run_compare` and `show_run` raise; the file of --json exists; a
            variant was left out.
    """
    # Imported here: `offpath bench --help` needs no polars.
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.experiments.compare import run_compare

    path = outputs.json_path
    if path is not None and path.exists():
        raise WrongOption(f"--json {str(path)!r} exists: name another file")
    is_announced = False

    def save(run: Run) -> None:
        nonlocal is_announced
        if not is_announced:
            # The first call comes when all options are accepted.
            run_outputs.say_estimate(choices.estimated_s)
            is_announced = True
        if run.rows:
            outputs.save(run)

    with run_outputs.keeping(outputs, "windows"), LiveProgress() as progress:
        run = run_compare(choices, progress, save)
    show_run(run, outputs, baseline)
    fail_if_left_out(run)


def fail_if_left_out(run: Run) -> None:
    """Ends the command with 1 where a variant failed, after the report was shown."""
    names = ", ".join(dict.fromkeys(failure.variant for failure in run.failures))
    if names:
        raise ExpectedError(f"left out after a failure (see the message above): {names}")
