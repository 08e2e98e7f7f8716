"""`offpath bench show`: the tables, plot and page of a saved result of any kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offpath.commands import bench_options as options
from offpath.commands.bench_light import render_light
from offpath.commands.bench_memory import print_memory
from offpath.commands.bench_start import print_starts
from offpath.commands.showing import Outputs, present
from offpath.handler.errors import ExpectedError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Wish:
    """How a result is to be shown; what a kind has no use for, it leaves."""

    baseline: str
    plot_path: Path | None
    html_path: Path | None
    console: Console
    markdown: bool


def show_run(path: Path, wish: Wish) -> None:
    """Of every experiment on the core."""
    from offpath.profiling.core.run import load_run
    from offpath.profiling.experiments.registry import document_of

    run = load_run(path)
    outputs = Outputs(None, None, wish.html_path, wish.plot_path, wish.markdown)
    present(run, document_of(run, wish.baseline), outputs)


def show_light(path: Path, wish: Wish) -> None:
    """Of `bench light`."""
    from offpath.profiling.experiments.light_result import LIGHT

    render_light(LIGHT.load(path), wish.html_path, wish.console)


def show_memory(path: Path, wish: Wish) -> None:
    """Of `bench memory`."""
    from offpath.profiling.experiments.memory import MEMORY

    print_memory(MEMORY.load(path), wish.console)


def show_start(path: Path, wish: Wish) -> None:
    """Of `bench start`."""
    from offpath.profiling.experiments.start import START

    print_starts(START.load(path), wish.baseline, wish.console)


Show = Callable[[Path, Wish], None]

# By format, see profiling/core/saved.py; PLOTTED ones can be drawn, PAGED ones have a page.
PLOTTED: dict[str, Show] = {
    "offpath-run": show_run,
}
PAGED: dict[str, Show] = {**PLOTTED, "offpath-light": show_light}
SHOWN: dict[str, Show] = {
    **PAGED,
    "offpath-memory": show_memory,
    "offpath-start": show_start,
}


@click.command("show")
@click.argument("json_path", type=click.Path(path_type=Path, dir_okay=False))
@options.baseline_option
@options.plot_option
@options.html_option
@click.option("--markdown", is_flag=True, help="Tables for a README or an issue.")
def command(
    json_path: Path,
    baseline: str,
    plot_path: Path | None,
    html_path: Path | None,
    markdown: bool,
) -> None:
    """Prints (and draws) a saved result of any `offpath bench` command, or of `offpath tune`."""
    from rich.console import Console

    from offpath.profiling.core.saved import read_format
    from offpath.profiling.report.old_markdown import MarkdownConsole

    kind = read_format(json_path)
    if kind == "offpath-profile":
        raise ExpectedError(
            f"{str(json_path)!r} is a profile: offpath profile show {json_path}"
        )
    if kind not in SHOWN:
        raise ExpectedError(
            f"cannot read {str(json_path)!r}: no format {kind!r} is known here;"
            f" there are: {', '.join(SHOWN)}"
        )
    for path, drawn, what in (
        (plot_path, PLOTTED, "plot"),
        (html_path, PAGED, "page"),
    ):
        if path is not None and kind not in drawn:
            raise ExpectedError(f"a result of kind {kind} has no {what}, only tables")
    console = MarkdownConsole() if markdown else Console()
    wish = Wish(baseline, plot_path, html_path, console, markdown)
    SHOWN[kind](json_path, wish)
