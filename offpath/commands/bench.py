"""`offpath bench`: servers side by side."""

from __future__ import annotations

import click

from offpath.commands import bench_compare, bench_setup, bench_show, bench_sweep


@click.group()
def command() -> None:
    """Measure servers side by side, in one run, beside the limits of the cores."""


for subcommand in (
    bench_compare.command,
    bench_show.command,
    bench_sweep.command,
    bench_setup.setup,
):
    command.add_command(subcommand)
