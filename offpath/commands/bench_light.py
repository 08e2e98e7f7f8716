"""`offpath bench light`: what a lone request costs beyond decode, transform and forward."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options

if TYPE_CHECKING:
    from rich.console import Console

    from offpath.profiling.experiments.light_result import LightResult


@click.command("light")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    default=("photos-1200k", "photos-55k"),
    show_default=True,
    help="photos-1200k, photos-55k or a folder of photographs; may be given several times.",
)
@options.model_option
@click.option(
    "--servers",
    default="offpath",
    show_default=True,
    help="Comma-separated, one after the other.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--requests",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Of each window.",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=click.FloatRange(0),
    default=15,
    show_default=True,
    help="Seconds of load by eight clients before; Java compiles meanwhile.",
)
@click.option(
    "--pause-ms",
    type=click.FloatRange(0),
    default=0,
    show_default=True,
    help="Between a reply and the next request.",
)
@click.option(
    "--max-batch-delay-ms",
    type=click.IntRange(1),
    help="Instead of the preset's, for our server.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    help="Instead of the preset's, for our server.",
)
@options.seed_option
@options.json_option
@options.html_option
def command(
    workloads: tuple[str, ...],
    servers: str,
    json_path: Path | None,
    html_path: Path | None,
    **asked: Any,
) -> None:
    """One client, one request at a time: latency beside decode, transform and forward alone.

    Each round takes the archive's handler alone (one process, one thread, no server), the same
    client against a server that answers at once, and the server, on the same photographs. The
    account says where the difference goes; the bound is 3 ms.
    """
    # Imported here: `offpath bench --help` needs neither torch nor rich's live display.
    from rich.console import Console

    from offpath.commands.bench_progress import LiveProgress
    from offpath.profiling.experiments.light import LightChoices, run_light
    from offpath.profiling.experiments.light_result import LIGHT

    choices = LightChoices(
        workloads=workloads,
        servers=options.split_names(servers),
        command=options.command_line(),
        **asked,
    )

    with options.keeping(json_path, "windows"), LiveProgress() as progress:
        result = run_light(choices, progress, options.saving(LIGHT, json_path))
    console = Console()
    render_light(result, html_path, console)
    if json_path is not None:
        console.print(f"raw values: {json_path}", highlight=False, soft_wrap=True)


def render_light(result: LightResult, html_path: Path | None, console: Console) -> None:
    """Prints the tables, writes the page that was asked for."""
    from offpath.profiling.experiments.light_report import print_light, write_light_page

    print_light(result, console)
    if html_path is not None:
        write_light_page(result, html_path)
        console.print(f"page: {html_path}", highlight=False, soft_wrap=True)
