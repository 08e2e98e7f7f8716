"""`offpath bench engines`: the model's forward by every engine and precision that can run here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options
from offpath.handler.errors import ExpectedError

if TYPE_CHECKING:
    from offpath.profiling.experiments.engines_result import EnginesResult

MODELS = ("resnet50", "efficientnet-lite0")


@click.command("engines")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice([*MODELS, "near-free"]),
    default=MODELS,
    show_default=True,
    help="May be given several times.",
)
@click.option(
    "--engines",
    default="",
    metavar="NAMES",
    help="Comma-separated: `openvino` for all its precisions, `openvino:int8` for one; eager:fp32"
    " is always measured.  [default: all]",
)
@click.option("--batch-sizes", default="1,8", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=1,
    show_default=True,
    help="Length of a window; at least three batches.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    help="That run at the same time, one thread each.  [default: one a core; 1 on cuda]",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True
)
@click.option(
    "--workload",
    default="photos-55k",
    show_default=True,
    help="Photographs whose answers are compared; a name or a folder.",
)
@options.seed_option
@options.json_option
@click.option(
    "--append",
    is_flag=True,
    help="Add rounds, models or engines to the --json file; unlike runs are refused.",
)
@options.plot_option
@options.html_option
def command(
    engines: str,
    batch_sizes: str,
    processes: int | None,
    json_path: Path | None,
    append: bool,
    plot_path: Path | None,
    html_path: Path | None,
    **asked: Any,
) -> None:
    """Speed, start, memory and answers of the engines, each beside eager fp32 in the same rounds.

    Artefacts are built as `offpath archive` builds them and run by the handler's own code, each in
    processes of its own. The figure that counts is images a second of all cores: one process a
    core with one thread each, as workers run. One that fails is left out and said; the others go
    on. Ctrl-C keeps the finished rows of --json.
    """
    from rich.console import Console

    from offpath.commands.engines_progress import EnginesProgress
    from offpath.profiling.core.host import count_cores
    from offpath.profiling.experiments.engines_choice import EnginesChoices
    from offpath.profiling.experiments.engines_result import ENGINES
    from offpath.profiling.experiments.engines_session import run_engines

    if processes is None:
        processes = count_cores() if asked["device"] == "cpu" else 1
    choices = EnginesChoices(
        engines=options.split_names(engines),
        batch_sizes=options.read_numbers("--batch-sizes", batch_sizes, "1,8"),
        processes=processes,
        command=options.command_line(),
        **asked,
    )
    is_continued = json_path and options.is_continued(json_path, append)
    earlier = ENGINES.load(json_path) if json_path and is_continued else None

    with options.keeping(json_path, "rows"), EnginesProgress() as progress:
        result = run_engines(
            choices, progress, options.saving(ENGINES, json_path), earlier
        )
    console = Console()
    render_engines(result, plot_path, html_path, console)
    if json_path is not None:
        console.print(f"raw values: {json_path}")
    if result.failures:
        names = ", ".join(
            dict.fromkeys(f"{f.variant} of {f.model}" for f in result.failures)
        )
        raise ExpectedError(f"left out after a failure, see above: {names}")


def render_engines(
    result: EnginesResult, plot_path: Path | None, html_path: Path | None, console: Any
) -> None:
    """Prints the tables, draws what was asked for."""
    from offpath.profiling.experiments.engines_report import print_engines

    print_engines(result, console)
    if plot_path is not None:
        from offpath.profiling.experiments.engines_plot import save_engines_plot

        save_engines_plot(result, plot_path)
        console.print(f"plot: {plot_path}")
    if html_path is not None:
        from offpath.profiling.experiments.engines_page import write_engines_page

        write_engines_page(result, html_path)
        console.print(f"page: {html_path}")
