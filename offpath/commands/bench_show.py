"""`offpath bench show`: the tables, plot and page of a saved run of any experiment."""

from __future__ import annotations

from pathlib import Path

import click

from offpath.commands import bench_options as options
from offpath.commands import showing


@click.command("show")
@click.argument(
    "path", metavar="JSON_PATH", type=click.Path(path_type=Path, dir_okay=False)
)
@options.baseline_option
@showing.output_options
def command(path: Path, baseline: str | None, outputs: showing.Outputs) -> None:
    """Prints (and draws) a saved run of any `offpath bench` command, or of `offpath tune`."""
    from offpath.profiling.core.run import load_run
    from offpath.profiling.experiments.registry import document_of

    run = load_run(path)
    outputs.save(run)
    showing.present(run, document_of(run, baseline), outputs)
