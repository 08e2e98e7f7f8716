"""`offpath profile`: where a request's time goes in a handler, without a server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

from offpath.commands.declared_options import option, takes_options
from offpath.commands.run_outputs import (
    Outputs,
    command_line,
    fail_if_left_out,
    measuring,
    present,
)
from offpath.commands.shared_options import ARCHIVE, FOLDER, MODELS
from offpath.errors import WrongOption


@dataclass(frozen=True, kw_only=True)
class HandlerOptions:
    """Options of the profiles of handlers."""

    handlers: tuple[str, ...] = option(
        "offpath, stock, naive, or a class of your own. Can be repeated: handlers get the same"
        " images.  [default: offpath]",
        "--handler",
        multiple=True,
        metavar="NAME|FILE:CLASS",
    )
    mars: tuple[Path, ...] = option(
        "An archive with its own handler and model, which a --handler beside it runs too. Can be"
        " repeated.",
        "--mar",
        multiple=True,
        type=ARCHIVE,
    )
    model: str | None = option(
        "Model to load, where no --mar brings its own. near-free (pool + linear) stands in for an"
        " accelerator.  [default: near-free]",
        type=click.Choice(MODELS),
    )
    requests: int = option(
        "Requests per handler, not counting the warm-up.", type=click.IntRange(1), default=1000
    )
    batch_size: int | None = option(
        "Requests per batch.  [default: 8; naive 1, as TorchServe would give it]",
        type=click.IntRange(1, 1024),
    )
    images: str = option(
        "Images to send: bundled, photos-55k, photos-1200k or a folder.", default="bundled"
    )
    outputs: Outputs


OUTPUT: Path = option(
    "Folder for the .prof and .html files.", type=FOLDER, default=Path("offpath-profile")
)


@click.group
def command() -> None:
    """Show where a request's time goes in a handler: by stage, function or line.

    No server runs. `offpath bench show` prints a saved profile again.
    """


def profile_handlers(kind: str, options: HandlerOptions, output: Path = Path()) -> None:
    if options.mars and options.model:
        raise WrongOption("--mar brings its own model: leave out --model")
    # Imported here: `offpath profile --help` needs no torch.
    from offpath.profiling.profilers.profile_experiment import ProfileChoices, run_profile
    from offpath.profiling.profilers.profile_report import document_of

    choices = ProfileChoices(
        kind=kind,
        handlers=options.handlers,
        mars=options.mars,
        model=options.model,
        requests=options.requests,
        batch_size=options.batch_size,
        images=options.images,
        command=command_line(),
        output=output,
    )
    outputs = options.outputs
    with measuring(outputs, "handlers") as progress:
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


@command.command("stages")
@takes_options
def profile_stages(options: HandlerOptions) -> None:
    """Measure each stage of a handler, per batch and per image. Stages add up to the total."""
    profile_handlers("stages", options)


@command.command("cprofile")
@takes_options
def profile_functions(options: HandlerOptions, output: Path = OUTPUT) -> None:
    """Measure each function and package; write HANDLER.prof."""
    profile_handlers("cprofile", options, output)


@command.command("lines")
@takes_options
def profile_lines(options: HandlerOptions) -> None:
    """Measure each line of a handler's stages."""
    profile_handlers("lines", options)


@command.command("flame")
@takes_options
def profile_stacks(options: HandlerOptions, output: Path = OUTPUT) -> None:
    """Sample the stacks of all threads; write a flame graph, HANDLER-flame.html."""
    profile_handlers("flame", options, output)
