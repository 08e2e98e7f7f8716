"""`offpath bench jvm`: the front end's settings side by side under our handler."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from offpath.commands import bench_options as options
from offpath.handler.errors import ExpectedError

if TYPE_CHECKING:
    from offpath.profiling.experiments.jvm_variants import Variant


@click.command("jvm")
@click.argument("variants", nargs=-1, metavar="[VARIANT]...")
@click.option(
    "--netty",
    is_flag=True,
    help="Netty's threads, buffers and the queue in config.properties instead of Java's options.",
)
@click.option(
    "--side-by-side",
    is_flag=True,
    help="All variants run at once and take turns: tells a few per cent on cores whose speed"
    " changes. 1.5 GB of memory a variant.",
)
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=6, show_default=True)
@options.generator_option
@options.json_option
def command(
    variants: tuple[str, ...],
    netty: bool,
    json_path: Path | None,
    **asked: Any,
) -> None:
    """Collectors, heaps and Netty's settings under the near-free model, 32 clients and one.

    Without a VARIANT all of a group run; a wrong name lists them. The first is what the others are
    divided by. One that fails is left out and said; the others go on. docs/jvm.md has our tables.
    """
    from offpath.profiling.experiments.jvm import JVM, JvmChoices, measure_variants
    from offpath.profiling.experiments.jvm_report import format_table

    choices = JvmChoices(
        variants=choose_variants(variants, netty),
        command=options.command_line(),
        **asked,
    )

    with options.keeping(json_path, "variants"):
        result = measure_variants(
            choices,
            lambda line: click.echo(line, err=True),
            options.saving(JVM, json_path),
        )
    click.echo(format_table(result))
    if result.left_out:
        names = ", ".join(result.left_out)
        raise ExpectedError(f"left out after a failure, see above: {names}")


def choose_variants(names: tuple[str, ...], netty: bool) -> dict[str, Variant]:
    """The named variants in their order, or all of the group."""
    from offpath.profiling.core.host import count_cores
    from offpath.profiling.experiments.jvm_variants import (
        list_jvm_variants,
        list_netty_variants,
    )

    known = list_netty_variants(count_cores()) if netty else list_jvm_variants()
    for name in names:
        if name not in known:
            raise ExpectedError(f"no variant {name!r}; there are: {'; '.join(known)}")
    return {name: known[name] for name in names or known}
