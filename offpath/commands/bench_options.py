"""What the subcommands of `offpath bench` share: options, and how they read and name things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from offpath.commands import showing
from offpath.commands.showing import Outputs, read_earlier
from offpath.handler.errors import ExpectedError

if TYPE_CHECKING:
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.core.conditions import Condition
    from offpath.profiling.core.run import Run

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_SERVERS = "offpath,torchserve-stock,torchserve-fixed"

MODELS = ("near-free", "resnet50", "efficientnet-lite0")


def read_model(_: click.Context, __: click.Parameter, value: str) -> str:
    """An embedded model's name, or the user's archive as an absolute path: servers load it too."""
    if value in MODELS:
        return value
    path = Path(value)
    if path.suffix == ".mar" and path.is_file():
        return str(path.resolve())
    what = "no such file" if path.suffix == ".mar" else "no such model"
    raise click.BadParameter(
        f"{value!r}: {what}; there are: {', '.join(MODELS)}, or a .mar file"
    )


tries_option = click.option(
    "--tries",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="A window during which something else was busy on the cores is measured again, so often"
    " at most.",
)
model_option = click.option(
    "--model",
    callback=read_model,
    metavar=f"[{'|'.join(MODELS)}|FILE.mar]",
    default="near-free",
    show_default=True,
    help="near-free (pool + linear) stands in for an accelerator; of a .mar: model, weights, labels"
    " and preprocessing.",
)
variants_option = click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="NAME=SERVER:KEY=VALUE;...",
    help="After --servers, a TorchServe of them with other settings; may be given several times."
    " KEY: one of config.properties, vmargs+ (further options of Java), model.batch_size,"
    " model.max_batch_delay_ms, model.workers, handler.SETTING, env.NAME,"
    " front.SETTING (tls, hosts, queue, by_name_from_bytes, buffer_bytes).",
)
append_option = click.option(
    "--append",
    is_flag=True,
    help="Add rounds to the --json file; unlike runs are refused.",
)
servers_option = click.option(
    "--servers",
    default=DEFAULT_SERVERS,
    show_default=True,
    help="Comma-separated, in the order of a round.",
)
baseline_option = click.option(
    "--baseline",
    help="Variant that the others are divided by.  [default: the experiment's own, servers:"
    " torchserve-stock]",
)


def read_conditions(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> tuple[Condition, ...]:
    """Before minutes of measuring, not after."""
    if not texts:
        return ()
    from offpath.profiling.core.conditions import parse_condition

    try:
        return tuple(map(parse_condition, texts))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


bound_option = click.option(
    "--bound-ms",
    type=click.FloatRange(0, min_open=True),
    help="Adds goodput: good replies a second that came within so many milliseconds.",
)
fail_if_option = click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    callback=read_conditions,
    metavar="[VARIANT:]METRIC>N",
    help="For CI: exit code 1 where it holds (or was not measured), 2 for a wrong expression; may"
    " be given several times. p99_ms, failed, rate, goodput, cpu_ms, ...; > >= < <= == !=; the"
    " median of the rounds, of every variant or of the one named: 'offpath:p99_ms>100'.",
)


def workloads_option(*default: str) -> Callable[[Command], Command]:
    """What is sent."""
    return click.option(
        "--workload",
        "workloads",
        multiple=True,
        default=default,
        show_default=True,
        help="photos-1200k, photos-55k, photos-NNNk (made at first use) or a folder of"
        " photographs; may be given several times.",
    )


def rounds_option(default: int) -> Callable[[Command], Command]:
    """How often everything is measured."""
    return click.option(
        "--rounds", type=click.IntRange(1), default=default, show_default=True
    )


@dataclass(frozen=True)
class Reading:
    """How a run is read, whenever it was measured: see the options of these names."""

    baseline: str | None = None
    bound_ms: float | None = None
    conditions: tuple[Condition, ...] = ()

    def show(self, run: Run, outputs: Outputs) -> None:
        """Prints and writes the report, then judges.

        Raises:
            ExpectedError: a condition holds.
            UsageError: the baseline or a condition names a variant that the run has not.
        """
        from offpath.profiling.experiments.registry import document_of

        names = {row.variant for row in run.rows}
        if self.baseline is not None and self.baseline not in names:
            raise click.UsageError(
                f"--baseline {self.baseline!r}: expected one of {', '.join(sorted(names))}"
            )
        if self.bound_ms is not None:
            from offpath.profiling.core.goodput import BOUND

            run = replace(run, settings={**run.settings, BOUND: self.bound_ms})
        showing.present(run, document_of(run, self.baseline), outputs)
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


class Keeper:
    """Saves a run as it goes on, behind the rounds of an earlier one where it continues that.

    Raises:
        ExpectedError: see `showing.read_earlier`; `save` and `join`, where the runs are unlike.
    """

    def __init__(self, outputs: Outputs, append: bool, experiment: str) -> None:
        self._outputs = outputs
        self._earlier = read_earlier(outputs, append, experiment)

    def join(self, run: Run) -> Run:
        """With the earlier rounds."""
        from offpath.profiling.core.run import merge_runs

        return run if self._earlier is None else merge_runs(self._earlier, run)

    def save(self, run: Run) -> None:
        """What a runner calls; a run without figures is not kept."""
        joined = self.join(run)
        if joined.rows:
            self._outputs.save(joined)


def measure_and_show(
    experiment: str,
    measure: Callable[[Any, LiveProgress, Callable[[Run], None]], Run],
    choices: Any,
    outputs: Outputs,
    append: bool,
    reading: Reading = Reading(),
) -> None:
    """One command from its choices to its report.

    Raises:
        ExpectedError: what `measure` and `Reading.show` raise; a variant was left out.
    """
    # Imported here: `offpath bench --help` needs no polars.
    from offpath.commands.progress import LiveProgress

    keeper = Keeper(outputs, append, experiment)
    showing.say_estimate(choices.estimated_s)
    with showing.keeping(outputs, "windows"), LiveProgress() as progress:
        run = keeper.join(measure(choices, progress, keeper.save))
    reading.show(run, outputs)
    fail_if_left_out(run)


def fail_if_left_out(run: Run) -> None:
    """Ends the command with 1 when a variant failed; its report has been shown."""
    names = ", ".join(dict.fromkeys(failure.variant for failure in run.failures))
    if names:
        raise ExpectedError(f"left out after a failure, see above: {names}")
