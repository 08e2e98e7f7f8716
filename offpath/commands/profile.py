"""`offpath profile`: where a request's time goes, in a handler alone or in a server under load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from offpath.commands.run_outputs import (
    FILE,
    Outputs,
    command_line,
    fail_if_left_out,
    keeping,
    output_options,
    present,
)
from offpath.commands.shared_options import CLIENTS_HELP, MODELS, Command, add_options
from offpath.commands.url_option import check_url
from offpath.errors import WrongOption

model_option = click.option(
    "--model", type=click.Choice(MODELS),
    help="Model to load, where no --mar brings its own. near-free (pool + linear) stands in for an"
    " accelerator.  [default: near-free]",
)  # fmt: skip


def images_option(default: str) -> Callable[[Command], Command]:
    return click.option(
        "--images",
        default=default,
        show_default=True,
        help="Images to send: bundled, photos-55k, photos-1200k or a folder.",
    )


output_option = click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False),
    default=Path("offpath-profile"), show_default=True,
    help="Folder for the .prof and .html files.",
)  # fmt: skip
handler_options = add_options(
    click.option("--handler", "handlers", multiple=True, metavar="NAME|FILE:CLASS",
                 help="offpath, stock, naive, or a class of your own. Can be repeated: handlers"
                      " get the same images.  [default: offpath]"),
    click.option("--mar", "mars", multiple=True, type=FILE,
                 help="An archive with its own handler and model, which a --handler beside it runs"
                      " too. Can be repeated."),
    model_option,
    click.option("--requests", type=click.IntRange(1), default=1000, show_default=True,
                 help="Requests per handler, not counting the warm-up."),
    click.option("--batch-size", type=click.IntRange(1, 1024),
                 help="Requests per batch.  [default: 8; naive 1, as TorchServe would give it]"),
    images_option("bundled"),
    output_options,
)  # fmt: skip


@click.group
def command() -> None:
    """Show where a request's time goes: by stage, function or line, or inside a server.

    `stages`, `cprofile`, `lines` and `flame` run a handler without a server. `server` loads a
    running one. `offpath bench show` prints a saved profile again.
    """


def profile_handlers(kind: str, outputs: Outputs, **chosen: Any) -> None:
    if chosen["mars"] and chosen["model"]:
        raise WrongOption("--mar brings its own model: leave out --model")
    # Imported here: `offpath profile --help` needs neither torch nor rich's live display.
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.profilers.profile_experiment import ProfileChoices, run_profile
    from offpath.profiling.profilers.profile_report import document_of

    choices = ProfileChoices(kind=kind, command=command_line(), **chosen)
    with keeping(outputs, "handlers"), LiveProgress() as progress:
        run = run_profile(choices, progress, outputs.save)
    document = document_of(run, None)
    written = {
        name: file
        for name in run.variants
        if (file := choices.name_file(name)) is not None and not run.has_failed(name)
    }
    if kind == "flame":
        # Only what this command has just written: a saved result could name any file.
        pages = {name: file.read_text("utf-8") for name, file in written.items()}
        document = replace(document, pages=pages)
    present(run, document, outputs)
    for name, file in written.items():
        click.echo(f"{name}: {file}")
    fail_if_left_out(run)


def define(kind: str, text: str, *more: Callable[[Any], Any]) -> None:
    """Adds the command of one kind of profile."""

    @command.command(kind, help=text)
    @handler_options
    @add_options(*more)
    def profile(**chosen: Any) -> None:
        profile_handlers(kind, **chosen)


define(
    "stages",
    "Measure each stage of a handler, per batch and per image. Stages add up to the total.",
)
define("cprofile", "Measure each function and package; write HANDLER.prof.", output_option)
define("lines", "Measure each line of a handler's stages.")
define(
    "flame",
    "Sample the stacks of all threads; write a flame graph, HANDLER-flame.html.",
    output_option,
)


@command.command("server")
@click.option(
    "--clients",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help=f"{CLIENTS_HELP} 1 shows what a request costs without a queue.",
)
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(2),
    default=30,
    show_default=True,
    help="Seconds to measure, after 15 of warm-up.",
)
@click.option(
    "--url",
    metavar="http://HOST:PORT/predictions/MODEL",
    required=True,
    help="Model of a running server, TorchServe or Granian.",
)
@click.option(
    "--metrics-url",
    help="Address of its metrics API.  [default: port 8082 of the same host]",
)
@images_option("photos-55k")
@output_options
def server(outputs: Outputs, **chosen: Any) -> None:
    """Split clients' mean latency into socket, queue, worker and stages.

    Loads a running server and compares its counters with the clients' clock. The parts add up
    to the clients' mean latency. Use `--clients 1` to see what a single request costs.
    """  # fmt: skip
    # Before minutes of load.
    if "/predictions/" not in check_url("--url", chosen["url"]):
        raise WrongOption(
            f"--url {chosen['url']!r} names no model; expected http://HOST:PORT/predictions/MODEL"
        )
    # Imported here: `offpath profile server --help` needs neither torch nor rich's live display.
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.experiments.server_profile import (
        ServerChoices,
        document_of,
        run_server_profile,
    )

    choices = ServerChoices(command=command_line(), **chosen)
    with keeping(outputs, "the window"), LiveProgress() as progress:
        run = run_server_profile(choices, progress, outputs.save)
    present(run, document_of(run), outputs)
