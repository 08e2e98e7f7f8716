"""What the subcommands of `offpath bench` share: options, and how they read and name things."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from offpath.commands.showing import Outputs, read_earlier
from offpath.handler.errors import ExpectedError
from offpath.serving.interrupts import Terminated, stopping_on_signals

if TYPE_CHECKING:
    from offpath.profiling.core.run import Run
    from offpath.profiling.core.saved import Result, Saved

Command = TypeVar("Command", bound=Callable[..., Any])
BASELINE = "torchserve-stock"
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


workloads_option = click.option(
    "--workload",
    "workloads",
    multiple=True,
    default=("photos-1200k", "photos-55k"),
    show_default=True,
    help="photos-1200k, photos-55k or a folder of photographs; may be given several times.",
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
servers_option = click.option(
    "--servers",
    default=DEFAULT_SERVERS,
    show_default=True,
    help="Comma-separated, in the order of a round.",
)
baseline_option = click.option(
    "--baseline",
    default=BASELINE,
    show_default=True,
    help="Server that the others are divided by.",
)
generator_option = click.option(
    "--generator",
    type=click.Choice(["locust", "wrk"]),
    default="locust",
    show_default=True,
    help="wrk is lighter where it is installed.",
)
seed_option = click.option("--seed", type=int, default=0, show_default=True)
json_option = click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Raw values, saved as they come.",
)
plot_option = click.option(
    "--plot", "plot_path", type=click.Path(path_type=Path), help="FILE.svg or FILE.png."
)
html_option = click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="One self-contained page.",
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


def fail_if_left_out(run: Run) -> None:
    """Ends the command with 1 when a variant failed; its report has been shown."""
    names = ", ".join(dict.fromkeys(failure.variant for failure in run.failures))
    if names:
        raise ExpectedError(f"left out after a failure, see above: {names}")


def command_line() -> str:
    """The command line as typed, with `offpath` for the program's path."""
    return shlex.join(["offpath", *sys.argv[1:]])


def is_continued(json_path: Path, append: bool) -> bool:
    """Whether the file holds a result to continue; raises ExpectedError without --append."""
    if not json_path.exists():
        return False
    if not append:
        raise ExpectedError(
            f"result {str(json_path)!r} exists: add rounds to it with --append, or name another"
        )
    return True


def saving(kind: Saved[Result], json_path: Path | None) -> Callable[[Result], None]:
    """What a run calls with all that it has so far: it goes to --json where that was given."""

    def save(finished: Result) -> None:
        if json_path is not None:
            kind.save(finished, json_path)

    return save


def say_estimate(seconds: float) -> None:
    """Says before it starts how long a run takes."""
    minutes = max(1, round(seconds / 60))
    click.echo(f"takes about {minutes} min, and the servers' builds before", err=True)


def split_names(text: str) -> tuple[str, ...]:
    """`a, b` -> (a, b)."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def read_numbers(option: str, text: str, example: str) -> tuple[int, ...]:
    """`1, 8` -> (1, 8); raises UsageError for anything but whole numbers above 0."""
    names = split_names(text)
    if not names or not all(name.isdigit() and int(name) for name in names):
        raise click.UsageError(
            f"{option} {text!r}: expected whole numbers above 0, for instance {example}"
        )
    return tuple(map(int, names))


@contextlib.contextmanager
def keeping(json_path: Path | None, what: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the servers to the end, and say where the finished part is."""
    try:
        with stopping_on_signals():
            yield
    except (KeyboardInterrupt, Terminated) as stop:
        if json_path is not None and json_path.exists():
            click.echo(f"stopped; finished {what} are in {json_path}", err=True)
        else:
            click.echo(f"stopped; nothing was kept (--json keeps {what})", err=True)
        raise KeyboardInterrupt from stop
