"""`offpath profile`: where a request's time goes, by stage, by function and by line."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.serving.interrupts import Terminated, stopping_on_signals

if TYPE_CHECKING:
    from offpath.profiling.in_process.profile_result import ProfileResult

# Subcommand -> module that holds it under its own name; imported when called.
ELSEWHERE = {
    "server": "offpath.commands.profile_server",
    "compare": "offpath.commands.profile_compare",
    "show": "offpath.commands.profile_compare",
}
FilePath = click.Path(path_type=Path, dir_okay=False)


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


_COMMON = (
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
    click.option("--json", "json_path", type=FilePath, help="Raw samples."),
    click.option("--html", "html_path", type=FilePath, help="One self-contained page."),
)  # fmt: skip
_HANDLERS = (
    click.option("--handler", "handlers", multiple=True, metavar="NAME|FILE:CLASS",
                 help="offpath, stock, naive, or a class of yours; may be given several times:"
                      " they take turns.  [default: offpath]"),
    click.option("--mar", "mars", multiple=True, type=FilePath,
                 help="An archive with its own model; may be given several times."),
    click.option("--s3-latency-ms", type=click.FloatRange(0), default=30.0, show_default=True,
                 help="Of the S3 server that starts when naive is among the handlers."),
)  # fmt: skip
_OUTPUT = click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("offpath-profile"),
    show_default=True,
    help="Folder for the files of the single handlers.",
)


def _with(*options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


@command.command("stages")
@_with(*_HANDLERS, *_COMMON)
@click.option(
    "--torch-profiler",
    "trace",
    type=FilePath,
    help="Also a torch.profiler trace of three batches, with a range per stage.",
)
def stages(**chosen: Any) -> None:
    """Seconds by stage, per batch and per image; disjoint stages that add up to the whole."""
    _profile("stages", chosen)


@command.command("cprofile")
@_with(*_HANDLERS, *_COMMON, _OUTPUT)
def cprofile(**chosen: Any) -> None:
    """Seconds by function and bucket, of all threads; HANDLER.prof for snakeviz."""
    _profile("cprofile", chosen)


@command.command("lines")
@_with(*_HANDLERS, *_COMMON)
@click.option(
    "--function",
    "functions",
    multiple=True,
    metavar="MODULE:QUALNAME",
    help="Watch this function; may be given several times.  [default: the handler's stages]",
)
def lines(**chosen: Any) -> None:
    """Seconds by source line, of the handler's stages or of named functions."""
    _profile("lines", chosen)


@command.command("flame")
@_with(*_HANDLERS, *_COMMON, _OUTPUT)
@click.option(
    "--interval-ms",
    type=click.FloatRange(0.1, 1000),
    default=1.0,
    show_default=True,
    help="Between two samples.",
)
def flame(**chosen: Any) -> None:
    """Sampled flame graphs of all threads: HANDLER-flame.html, self-contained."""
    _profile("flame", chosen)


@command.command("overhead")
@_with(*_COMMON)
def overhead(**chosen: Any) -> None:
    """What our handler's timings cost: batches with and without them, in turns, in one process."""
    from offpath.profiling.in_process.profile_session import describe_overhead

    if -(-chosen["requests"] // (chosen["batch_size"] or 8)) < 16:
        raise click.UsageError("--requests must be at least 16 batches")
    nothing = {"handlers": ("offpath",), "mars": (), "s3_latency_ms": 0.0}
    paths = [chosen.pop(name) for name in ("json_path", "html_path")]
    result = _run("overhead", {**chosen, **nothing})
    measured = describe_overhead(result)
    _show(result, *paths)
    click.echo(
        f"timings on cost {measured['overhead']:+.2%} (standard error {measured['error']:.2%}) of"
        f" the time of timings off; median over blocks of 8 of {measured['batches']:.0f} batches"
    )


def _profile(kind: str, chosen: dict[str, Any]) -> None:
    paths = [chosen.pop(name) for name in ("json_path", "html_path")]
    _show(_run(kind, chosen), *paths)


def _run(kind: str, chosen: dict[str, Any]) -> ProfileResult:
    # Imported here: `offpath profile --help` needs neither torch nor rich's live display.
    from offpath.commands.bench_options import command_line
    from offpath.commands.profile_progress import ProfileProgress
    from offpath.profiling.in_process.profile_session import ProfileChoices, run_profile

    chosen.setdefault("output", Path(os.curdir))
    choices = ProfileChoices(kind=kind, command=command_line(), **chosen)
    with _stopping(), ProfileProgress() as progress:
        return run_profile(choices, progress)


def _show(
    result: ProfileResult, json_path: Path | None, html_path: Path | None
) -> None:
    from rich.console import Console

    from offpath.profiling.in_process.profile_page import write_page
    from offpath.profiling.in_process.profile_report import print_profile
    from offpath.profiling.in_process.profile_result import PROFILE

    console = Console()
    print_profile(result, console)
    if json_path is not None:
        PROFILE.save(result, json_path)
        console.print(f"raw samples: {json_path}", highlight=False, soft_wrap=True)
    if html_path is not None:
        write_page(result, html_path)
        console.print(f"page: {html_path}", highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _stopping() -> Iterator[None]:
    """SIGTERM ends the handlers' processes as Ctrl-C does."""
    try:
        with stopping_on_signals():
            yield
    except Terminated:
        raise SystemExit(143) from None
