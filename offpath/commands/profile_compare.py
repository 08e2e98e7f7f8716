"""`offpath profile compare` and `offpath profile show`: saved profiles, read again."""

from __future__ import annotations

from pathlib import Path

import click

from offpath.commands.showing import (
    FILE,
    Outputs,
    command_line,
    output_options,
    present,
)


@click.command("compare")
@click.argument("first", metavar="A", type=FILE)
@click.argument("second", metavar="B", type=FILE)
@click.option("--force", is_flag=True, help="Compare what is not comparable.")
@output_options
def compare(first: Path, second: Path, force: bool, outputs: Outputs) -> None:
    """Two saved profiles side by side, per stage and kind of work, with ratios.

    Handlers of the same name are compared; where each file has one only, those two. Other
    photographs, batch sizes, models or hosts are refused.
    """
    from offpath.profiling.core.run import load_run
    from offpath.profiling.profilers.profile_compare import document_of, join_profiles

    run = join_profiles(load_run(first), load_run(second), command_line(), force)
    outputs.save(run)
    present(run, document_of(run), outputs)


@click.command("show")
@click.argument("file", metavar="FILE", type=FILE)
@output_options
def show(file: Path, outputs: Outputs) -> None:
    """Prints (and draws) a saved profile."""
    from offpath.profiling.core.run import load_run
    from offpath.profiling.experiments.registry import document_of

    run = load_run(file)
    outputs.save(run)
    present(run, document_of(run, None), outputs)
