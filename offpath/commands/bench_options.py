"""What the subcommands of `offpath bench` share: options, and how they read and name things."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from offpath.commands import showing
from offpath.commands.showing import Outputs, read_earlier
from offpath.handler.errors import ExpectedError

if TYPE_CHECKING:
    from offpath.commands.progress import LiveProgress
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
    " model.max_batch_delay_ms, model.workers, handler.SETTING, env.NAME.",
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
generator_option = click.option(
    "--generator",
    type=click.Choice(["locust", "wrk"]),
    default="locust",
    show_default=True,
    help="wrk is lighter where it is installed.",
)
seed_option = click.option("--seed", type=int, default=0, show_default=True)


def workloads_option(*default: str) -> Callable[[Command], Command]:
    """What is sent."""
    return click.option(
        "--workload",
        "workloads",
        multiple=True,
        default=default,
        show_default=True,
        help="photos-1200k, photos-55k or a folder of photographs; may be given several times.",
    )


def rounds_option(default: int) -> Callable[[Command], Command]:
    """How often everything is measured."""
    return click.option(
        "--rounds", type=click.IntRange(1), default=default, show_default=True
    )


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
    baseline: str | None = None,
) -> None:
    """One command from its choices to its report.

    Raises:
        ExpectedError: what `measure` raises; a variant was left out, after the report.
    """
    # Imported here: `offpath bench --help` needs no polars.
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.experiments.registry import document_of

    keeper = Keeper(outputs, append, experiment)
    showing.say_estimate(choices.estimated_s)
    with showing.keeping(outputs, "windows"), LiveProgress() as progress:
        run = keeper.join(measure(choices, progress, keeper.save))
    showing.present(run, document_of(run, baseline), outputs)
    fail_if_left_out(run)


def fail_if_left_out(run: Run) -> None:
    """Ends the command with 1 when a variant failed; its report has been shown."""
    names = ", ".join(dict.fromkeys(failure.variant for failure in run.failures))
    if names:
        raise ExpectedError(f"left out after a failure, see above: {names}")
