"""`offpath profile server`: where a client's latency went, in a TorchServe under load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from offpath.commands.bench_options import generator_option, warm_up_option
from offpath.commands.showing import (
    FILE,
    Outputs,
    command_line,
    keeping,
    output_options,
    present,
)
from offpath.commands.url_option import check_url


@click.command("server")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(2),
    default=30,
    show_default=True,
    help="Seconds of the measured window.",
)
@click.option(
    "--clients",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Each waits for its reply before it sends again.",
)
@warm_up_option(
    15,
    "Seconds of load before the window; Java compiles its hot code meanwhile.",
)
@click.option(
    "--handler",
    type=click.Choice(["offpath", "stock", "naive"]),
    default="offpath",
    show_default=True,
    help="What to serve.",
)
@click.option(
    "--model",
    default="near-free",
    show_default=True,
    type=click.Choice(["near-free", "resnet50", "efficientnet-lite0"]),
    help="near-free (pool + linear) stands in for an accelerator.",
)
@click.option(
    "--mar", type=FILE, help="Serve this archive instead of --handler and --model."
)
@click.option(
    "--url", help="Profile the TorchServe that runs there instead of one of our own."
)
@click.option(
    "--metrics-url", help="Its metrics.  [default: port 8082 of the same host]"
)
@click.option(
    "--management-url",
    help="Its management; unix:PATH as `offpath serve` prints it.  [default: port 8081 of the same "
    "host]",
)
@click.option(
    "--served-as", metavar="NAME", help="The model there.  [default: the only one]"
)
@click.option(
    "--images",
    default="photos-55k",
    show_default=True,
    help="photos-55k, photos-1200k or a folder of photographs.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Of the photographs and their order.",
)
@generator_option
@click.option(
    "--cprofile",
    is_flag=True,
    help="Then load it again with cProfile in the workers: WORKER.prof, functions.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("offpath-profile"),
    show_default=True,
    help="Folder of the .prof files.",
)
@output_options
@click.pass_context
def server(ctx: click.Context, /, outputs: Outputs, **chosen: Any) -> None:
    """Where a client's latency went in the server: socket, queue, worker protocol, stages.

    Loads a TorchServe and compares its counters with the clients' clock. The lines add up to the
    clients' mean latency.
    """  # fmt: skip
    check_options(ctx, chosen)
    output, with_cprofile = chosen.pop("output"), chosen.pop("cprofile")
    # Imported here: `offpath profile server --help` needs neither torch nor rich's live display.
    from offpath.commands.progress import LiveProgress
    from offpath.profiling.experiments.server_document import document_of
    from offpath.profiling.experiments.server_profile import (
        ServerChoices,
        run_server_profile,
    )

    choices = ServerChoices(
        command=command_line(), profile_dir=output if with_cprofile else None, **chosen
    )
    with keeping(outputs, "the window"), LiveProgress() as progress:
        run = run_server_profile(choices, progress, outputs.save)
    present(run, document_of(run), outputs)


def check_options(ctx: click.Context, chosen: dict[str, Any]) -> None:
    """Raises UsageError for options that contradict each other, before anything is started."""

    def is_given(name: str) -> bool:
        return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE

    if chosen["mar"] is not None and (is_given("handler") or is_given("model")):
        raise click.UsageError(
            "--mar has its own handler and model: leave --handler/--model out"
        )
    attached = ("metrics_url", "management_url", "served_as")
    own = ("mar", "handler", "model", "cprofile", "output")
    if chosen["url"] is None:
        clashing = [name for name in attached if is_given(name)]
        reason = "only with --url"
    else:
        clashing = [name for name in own if is_given(name)]
        reason = "not with --url, which profiles a server as it runs"
    if clashing:
        option = "--" + clashing[0].replace("_", "-")
        raise click.UsageError(f"{option} goes {reason}")
    if chosen["url"] is not None:
        check_url("--url", chosen["url"])
