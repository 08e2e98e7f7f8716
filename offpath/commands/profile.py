"""`offpath profile`: where a request's time goes, in a handler alone or in a server under load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from offpath.commands.bench_options import MODELS, fail_if_left_out
from offpath.commands.load_options import load_options
from offpath.commands.run_outputs import (
    FILE,
    Outputs,
    command_line,
    keeping,
    output_options,
    present,
)
from offpath.commands.shared_options import add_options
from offpath.commands.url_option import check_url

model_option = click.option(
    "--model", default="near-free", show_default=True,
    type=click.Choice(MODELS),
    help="Model to load. near-free (pool + linear) stands in for an accelerator.",
)  # fmt: skip
images_option = click.option(
    "--images", default="photos-55k", show_default=True,
    help="Images to send: photos-55k, photos-1200k or a folder.",
)  # fmt: skip
output_option = click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False),
    default=Path("offpath-profile"), show_default=True,
    help="Folder for the .prof and .html files.",
)  # fmt: skip
HANDLER_OPTIONS = (
    click.option("--handler", "handlers", multiple=True, metavar="NAME|FILE:CLASS",
                 help="offpath, stock, naive, or a class of your own. Can be repeated: handlers"
                      " get the same images.  [default: offpath]"),
    click.option("--mar", "mars", multiple=True, type=FILE,
                 help="An archive with its own handler and model. Can be repeated."),
    click.option("--s3-latency-ms", type=click.FloatRange(0), default=30.0, show_default=True,
                 help="Latency of the stand-in for S3 that is started for the handler naive."),
    model_option,
    click.option("--requests", type=click.IntRange(1), default=1000, show_default=True,
                 help="Requests per handler, not counting the warm-up."),
    click.option("--batch-size", type=click.IntRange(1, 1024),
                 help="Requests per batch.  [default: 8; naive 1, as TorchServe would give it]"),
    images_option,
    click.option("--threads", type=click.IntRange(1, 256), default=1, show_default=True,
                 help="Threads for torch and for offpath's decoder. In production: cores /"
                      " workers."),
    click.option("--warm-up", type=click.IntRange(1), default=80, show_default=True,
                 help="Requests per handler before measuring starts."),
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto",
                 show_default=True, help="auto uses CUDA where torch finds it."),
)  # fmt: skip


@click.group
def command() -> None:
    """Show where a request's time goes: by stage, function or line, or inside a server.

    `stages`, `cprofile`, `lines` and `flame` run a handler without a server. `server` loads a
    TorchServe. `offpath bench show` prints a saved profile again.
    """


@command.command("stages")
@add_options(*HANDLER_OPTIONS, output_options)
@click.option(
    "--torch-profiler",
    "trace",
    type=FILE,
    help="Also write a torch.profiler trace of three batches, with one range per stage.",
)
def stages(**chosen: Any) -> None:
    """Measure each stage of a handler, per batch and per image. Stages add up to the total."""
    profile_handlers("stages", **chosen)


@command.command("cprofile")
@add_options(*HANDLER_OPTIONS, output_options, output_option)
def cprofile(**chosen: Any) -> None:
    """Measure each function and package; write HANDLER.prof."""
    profile_handlers("cprofile", **chosen)


@command.command("lines")
@add_options(*HANDLER_OPTIONS, output_options)
@click.option(
    "--function",
    "functions",
    multiple=True,
    metavar="MODULE:QUALNAME",
    help="Measure this function. Can be repeated.  [default: the handler's stages]",
)
def lines(**chosen: Any) -> None:
    """Measure each line of a handler's stages, or of chosen functions."""
    profile_handlers("lines", **chosen)


@command.command("flame")
@add_options(*HANDLER_OPTIONS, output_options, output_option)
def flame(**chosen: Any) -> None:
    """Sample the stacks of all threads; write a flame graph, HANDLER-flame.html."""
    profile_handlers("flame", **chosen)


def profile_handlers(kind: str, outputs: Outputs, **chosen: Any) -> None:
    # Imported here: `offpath profile --help` needs neither torch nor rich's live display.
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.profilers.profile_experiment import (
        ProfileChoices,
        run_profile,
    )
    from offpath.profiling.profilers.profile_report import document_of

    choices = ProfileChoices(kind=kind, command=command_line(), **chosen)
    with keeping(outputs, "handlers"), LiveProgress() as progress:
        run = run_profile(choices, progress, outputs.save)
    document = document_of(run, None)
    if kind == "flame":
        # Only what this command has just written: a saved result could name any file.
        files = {name: choices.name_file(name) for name in run.variants}
        pages = {
            name: file.read_text("utf-8")
            for name, file in files.items()
            if file is not None and not run.has_failed(name)
        }
        document = replace(document, pages=pages)
    present(run, document, outputs)
    fail_if_left_out(run)


@command.command("server")
@load_options(
    clients=32,
    clients_help="Concurrent clients. Each sends its next request after the reply. 1 shows what a"
    " request costs without a queue.",
    seconds=30,
    seconds_option="--duration",
    seconds_help="Seconds to measure.",
    least_s=2,
    warm_up_s=15,
    warm_up_help="Seconds of load before measuring. Java compiles its hot code meanwhile.",
)
@click.option(
    "--handler",
    type=click.Choice(["offpath", "stock", "naive"]),
    default="offpath",
    show_default=True,
    help="Handler to serve.",
)
@model_option
@click.option("--mar", type=FILE, help="Serve this archive instead of --handler and --model.")
@click.option("--url", help="Profile the TorchServe at this address instead of starting one.")
@click.option(
    "--metrics-url",
    help="Address of its metrics API.  [default: port 8082 of the same host]",
)
@click.option(
    "--management-url",
    help="Address of its management API, unix:PATH as `offpath serve` prints it."
    "  [default: port 8081 of the same host]",
)
@click.option(
    "--served-as",
    metavar="NAME",
    help="Name of the model on that server.  [default: the only model]",
)
@images_option
@output_options
@click.pass_context
def server(ctx: click.Context, /, outputs: Outputs, **chosen: Any) -> None:
    """Split clients' mean latency into socket, queue, worker and stages.

    Loads a TorchServe and compares its counters with the clients' clock. The parts add up to the
    clients' mean latency. Use `--clients 1` to see what a single request costs.
    """  # fmt: skip
    check_server_options(ctx, chosen)
    # Imported here: `offpath profile server --help` needs neither torch nor rich's live display.
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.experiments.server_account import document_of
    from offpath.profiling.experiments.server_profile import (
        ServerChoices,
        run_server_profile,
    )

    choices = ServerChoices(command=command_line(), **chosen)
    with keeping(outputs, "the window"), LiveProgress() as progress:
        run = run_server_profile(choices, progress, outputs.save)
    present(run, document_of(run), outputs)


def check_server_options(ctx: click.Context, chosen: dict[str, Any]) -> None:
    """Raises UsageError for options that contradict each other, before anything is started."""

    def is_given(name: str) -> bool:
        return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE

    if chosen["mar"] is not None and (is_given("handler") or is_given("model")):
        raise click.UsageError(
            "--mar brings its own handler and model: leave out --handler and --model"
        )
    attached = ("metrics_url", "management_url", "served_as")
    own = ("mar", "handler", "model")
    if chosen["url"] is None:
        clashing = [name for name in attached if is_given(name)]
        reason = "needs --url"
    else:
        clashing = [name for name in own if is_given(name)]
        reason = "cannot be used with --url, which profiles a server as it runs"
    if clashing:
        option = "--" + clashing[0].replace("_", "-")
        raise click.UsageError(f"{option} {reason}")
    if chosen["url"] is not None:
        check_url("--url", chosen["url"])
