"""Options that the subcommands of `offpath bench` share, and a run from measuring to its report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offpath.commands import run_outputs
from offpath.commands.run_outputs import Outputs
from offpath.errors import ExpectedError, WrongOption

if TYPE_CHECKING:
    from offpath.profiling.core.conditions import Condition
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


def read_conditions(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> tuple[Condition, ...]:
    # A wrong condition is refused before minutes of measuring.
    if not texts:
        return ()
    from offpath.profiling.core.conditions import parse_condition

    try:
        return tuple(map(parse_condition, texts))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


fail_if_option = click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    callback=read_conditions,
    metavar="[VARIANT:]METRIC>N",
    help="For CI: exit with 1 where the condition holds or its metric is missing, with 2 for a"
    " wrong expression. Can be repeated. METRIC: p99_ms, failed, rate, cpu_ms, ...;"
    " comparison: > >= < <= == !=. It uses the median of the rounds, of every variant or of the one"
    " named, as in 'offpath:p99_ms>100'.",
)


workloads_option = click.option(
    "--workload",
    "workloads",
    multiple=True,
    default=("photos-1200k", "photos-55k"),
    show_default=True,
    help="Images to send: photos-1200k, photos-55k, photos-NNNk (made at first use) or a folder."
    " Can be repeated.",
)
rounds_option = click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Number of times that everything is measured.",
)


@dataclass(frozen=True)
class Reading:
    """The options that decide how a run is read, when it was measured or later."""

    baseline: str | None = None
    conditions: tuple[Condition, ...] = ()

    def show(self, run: Run, outputs: Outputs) -> None:
        """Prints and writes the report, then judges the conditions.

        Raises:
            ExpectedError: a condition holds.
            UsageError: the baseline or a condition names a variant that the run does not have.
        """
        from offpath.profiling.experiments.registry import document_of

        names = {row.variant for row in run.rows}
        if self.baseline is not None and self.baseline not in names:
            raise click.UsageError(
                f"--baseline {self.baseline!r}: expected one of {', '.join(sorted(names))}"
            )
        run_outputs.present(run, document_of(run, self.baseline), outputs)
        if self.conditions:
            self._judge(run)

    def _judge(self, run: Run) -> None:
        from offpath.profiling.core.statistics import Summary

        summary = Summary(run)
        try:
            met = [said for it in self.conditions for said in it.find_met(summary)]
        except ValueError as error:
            raise click.UsageError(f"--fail-if {error}") from None
        if met:
            raise ExpectedError(f"--fail-if {'; '.join(met)}")


def measure_and_show(choices: Choices, outputs: Outputs, reading: Reading) -> None:
    """Runs a comparison from its choices to its report.

    Raises:
        ExpectedError: what `run_compare` and `Reading.show` raise; the file of --json exists; a
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
    reading.show(run, outputs)
    fail_if_left_out(run)


def fail_if_left_out(run: Run) -> None:
    """Ends the command with 1 where a variant failed, after the report was shown."""
    names = ", ".join(dict.fromkeys(failure.variant for failure in run.failures))
    if names:
        raise ExpectedError(f"left out after a failure (see the message above): {names}")
