"""`offpath profile`: where a request's time goes, by stage, by function and by line."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from offpath.commands.bench_options import fail_if_left_out
from offpath.commands.showing import (
    FILE,
    Outputs,
    command_line,
    keeping,
    output_options,
    present,
)

# Subcommand -> module that holds it under its own name; imported when called.
ELSEWHERE = {
    "server": "offpath.commands.profile_server",
    "compare": "offpath.commands.profile_compare",
    "show": "offpath.commands.profile_compare",
}


class ProfileGroup(click.Group):
    """The in-process profiles, and what other modules add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(ELSEWHERE[cmd_name])
        found: click.Command = getattr(module, cmd_name)
        return found


@click.group(cls=ProfileGroup)
def command() -> None:
    """Where a request's time goes: by stage, by function, by line; in process or in the server."""


_OPTIONS = (
    click.option("--handler", "handlers", multiple=True, metavar="NAME|FILE:CLASS",
                 help="offpath, stock, naive, or a class of yours; may be given several times:"
                      " they take turns.  [default: offpath]"),
    click.option("--mar", "mars", multiple=True, type=FILE,
                 help="An archive with its own model; may be given several times."),
    click.option("--s3-latency-ms", type=click.FloatRange(0), default=30.0, show_default=True,
                 help="Of the S3 server that starts when naive is among the handlers."),
    click.option("--model", default="near-free", show_default=True,
                 type=click.Choice(["near-free", "resnet50", "efficientnet-lite0"]),
                 help="near-free (pool + linear) stands in for an accelerator."),
    click.option("--requests", type=click.IntRange(1), default=1000, show_default=True,
                 help="Per handler, after the warm-up."),
    click.option("--batch-size", type=click.IntRange(1, 1024),
                 help="Requests a batch.  [default: 8; naive 1, as TorchServe would give it]"),
    click.option("--images", default="photos-55k", show_default=True,
                 help="photos-55k, photos-1200k or a folder of photographs."),
    click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True,
                 help="Of torch, and of our decoder: cores / workers."),
    click.option("--warm-up", type=click.IntRange(1), default=80, show_default=True,
                 help="Requests per handler before the first that counts."),
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto",
                 show_default=True, help="auto: CUDA where torch finds it."),
    click.option("--seed", type=int, default=0, show_default=True,
                 help="Of the photographs and their order."),
)  # fmt: skip
_output = click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("offpath-profile"),
    show_default=True,
    help="Folder for the files of the single handlers.",
)


def _common_options(function: Callable[..., None]) -> Callable[..., None]:
    function = output_options(function)
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@command.command("stages")
@_common_options
@click.option(
    "--torch-profiler",
    "trace",
    type=FILE,
    help="Also a torch.profiler trace of three batches, with a range per stage.",
)
def stages(**chosen: Any) -> None:
    """Seconds by stage, per batch and per image; disjoint stages that add up to the whole."""
    _profile("stages", **chosen)


@command.command("cprofile")
@_common_options
@_output
def cprofile(**chosen: Any) -> None:
    """Seconds by function and bucket, of all threads; HANDLER.prof for snakeviz."""
    _profile("cprofile", **chosen)


@command.command("lines")
@_common_options
@click.option(
    "--function",
    "functions",
    multiple=True,
    metavar="MODULE:QUALNAME",
    help="Watch this function; may be given several times.  [default: the handler's stages]",
)
def lines(**chosen: Any) -> None:
    """Seconds by source line, of the handler's stages or of named functions."""
    _profile("lines", **chosen)


@command.command("flame")
@_common_options
@_output
@click.option(
    "--interval-ms",
    type=click.FloatRange(0.1, 1000),
    default=1.0,
    show_default=True,
    help="Between two samples.",
)
def flame(**chosen: Any) -> None:
    """Sampled flame graphs of all threads: HANDLER-flame.html, self-contained."""
    _profile("flame", **chosen)


def _profile(kind: str, outputs: Outputs, **chosen: Any) -> None:
    # Imported here: `offpath profile --help` needs neither torch nor rich's live display.
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.profilers.profile_document import document_of
    from offpath.profiling.profilers.profile_experiment import (
        ProfileChoices,
        run_profile,
    )

    choices = ProfileChoices(kind=kind, command=command_line(), **chosen)
    with keeping(outputs, "turns"), LiveProgress() as progress:
        run = run_profile(choices, progress, outputs.save)
    present(run, document_of(run, None), outputs)
    fail_if_left_out(run)
