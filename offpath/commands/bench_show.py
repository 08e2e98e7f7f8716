"""`offpath bench show`: tables, charts and page of a saved run of any experiment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from offpath.commands import bench_options as options
from offpath.commands import run_outputs

if TYPE_CHECKING:
    from offpath.profiling.core.conditions import Condition


@click.command("show")
@click.argument("path", metavar="JSON_PATH", type=click.Path(path_type=Path, dir_okay=False))
@options.baseline_option
@options.bound_option
@options.fail_if_option
@run_outputs.output_options
@click.option(
    "--markdown",
    is_flag=True,
    help="Print Markdown tables for a README or an issue.",
)
def command(
    path: Path,
    baseline: str | None,
    bound_ms: float | None,
    conditions: tuple[Condition, ...],
    outputs: run_outputs.Outputs,
    markdown: bool,
) -> None:
    """Print (and draw) a saved result of `offpath bench`, `offpath profile` or `offpath tune`."""
    from offpath.profiling.core.run import load_run

    run = load_run(path)
    outputs.save(run)
    options.Reading(baseline, bound_ms, conditions).show(run, replace(outputs, markdown=markdown))
