"""`offpath bench setup`: installs servers under test, each into an environment of its own."""

from __future__ import annotations

import time

import click

from offpath.commands.declared_options import argument, option, takes_options
from offpath.errors import ExpectedError

MEGABYTE = 1_000_000


@click.command("setup")
@takes_options
def setup(
    names: tuple[str, ...] = argument("[NAME]...", nargs=-1),
    is_all: bool = option("Install every server that can be installed.", "--all"),
) -> None:
    """Install servers from PyPI into the cache, where `offpath bench compare` finds them.

    Without names, it lists the servers and whether they can run here. They share torch, torchvision
    and offpath with this environment, so that all servers run the same code. Delete the folder to
    undo it. docs/benchmark.md says what is installed and why.
    """
    # Imported here: `--help` needs no torch.
    from offpath.profiling.servers.registry import ENVIRONMENTS, check_names

    if is_all and names:
        raise click.UsageError("give names, or --all")
    if not is_all and not names:
        print_list()
    check_names(names)
    failed = []
    for name in ENVIRONMENTS if is_all else names:
        try:
            set_up(name)
        except ExpectedError as error:
            failed.append(name)
            click.echo(f"{name}: {error}", err=True)
    if failed:
        raise ExpectedError(
            f"not set up: {', '.join(failed)}; the messages are above, the others are done"
        )


def set_up(name: str) -> None:
    """Installs one server, or raises ExpectedError; prints the time and space that it took."""
    from offpath.profiling.servers.registry import ENVIRONMENTS

    environment = ENVIRONMENTS.get(name)
    if environment is None:
        click.echo(f"{name}: nothing to set up")
        return
    if environment.find() is not None:
        click.echo(f"{name}: already in {environment.folder}")
        return
    begin = time.perf_counter()
    environment.ensure()
    folder, took_s = environment.folder, time.perf_counter() - begin
    # lstat, because the links lead to packages that the servers share.
    size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    click.echo(f"{name}: set up in {took_s:.0f} s, {size / MEGABYTE:.0f} MB in {folder}")


def print_list() -> None:
    from rich.console import Console
    from rich.table import Table

    from offpath.handler.process.host_limits import count_cores
    from offpath.profiling.load.model_under_test import load_model
    from offpath.profiling.servers.registry import ENVIRONMENTS, SERVERS

    model = load_model("near-free")
    table = Table("server", "set up by", "here")
    for name, make in SERVERS.items():
        reason = make(model, count_cores()).why_not()
        by = f"offpath bench setup {name}" if name in ENVIRONMENTS else "part of offpath"
        table.add_row(name, by, reason or "ready")
    Console().print(table)
