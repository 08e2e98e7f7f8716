"""`offpath profile`: where a request's time goes, in a handler alone or in a server under load."""

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
from offpath.commands.shared_options import ARCHIVE, CLIENTS_HELP, FOLDER, MODELS
from offpath.commands.url_option import check_url
from offpath.errors import WrongOption

IMAGES_HELP = "Images to send: bundled, photos-55k, photos-1200k or a folder."


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
    images: str = option(IMAGES_HELP, default="bundled")
    outputs: Outputs


OUTPUT: Path = option(
    "Folder for the .prof and .html files.", type=FOLDER, default=Path("offpath-profile")
)


@click.group
def command() -> None:
    """Show where a request's time goes: by stage, function or line, or inside a server.

    `stages`, `cprofile`, `lines` and `flame` run a handler without a server. `server` loads a
    running one. `offpath bench show` prints a saved profile again.
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


@command.command("server")
@takes_options
def server(
    *,
    clients: int = option(
        f"{CLIENTS_HELP} 1 shows what a request costs without a queue.",
        type=click.IntRange(1),
        default=32,
    ),
    duration_s: float = option(
        "Seconds to measure, after 15 of warm-up.",
        "--duration",
        type=click.FloatRange(2),
        default=30,
    ),
    url: str = option(
        "Model of a running server, TorchServe or Granian.",
        metavar="http://HOST:PORT/predictions/MODEL",
        required=True,
    ),
    metrics_url: str | None = option(
        "Address of its metrics API.  [default: port 8082 of the same host]"
    ),
    images: str = option(IMAGES_HELP, default="photos-55k"),
    outputs: Outputs,
) -> None:
    """Split clients' mean latency into socket, queue, worker and stages.

    Loads a running server and compares its counters with the clients' clock. The parts add up
    to the clients' mean latency. Use `--clients 1` to see what a single request costs.
    """
    # Before minutes of load.
    if "/predictions/" not in check_url("--url", url):
        raise WrongOption(
            f"--url {url!r} names no model; expected http://HOST:PORT/predictions/MODEL"
        )
    # Imported here: `offpath profile server --help` needs no torch.
    from offpath.profiling.experiments.server_profile import (
        ServerChoices,
        document_of,
        run_server_profile,
    )

    choices = ServerChoices(
        clients=clients,
        duration_s=duration_s,
        images=images,
        command=command_line(),
        url=url,
        metrics_url=metrics_url,
    )
    with measuring(outputs, "the window") as progress:
        run = run_server_profile(choices, progress, outputs.save)
    present(run, document_of(run), outputs)
