"""`offpath bench jvm`: JVM options side by side under our handler."""

from __future__ import annotations

import click

from offpath.errors import ExpectedError


@click.command("jvm")
@click.argument("variants", nargs=-1, metavar="[VARIANT]...")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=6, show_default=True)
@click.option(
    "--generator",
    type=click.Choice(["locust", "wrk"]),
    default="locust",
    show_default=True,
)
def command(
    variants: tuple[str, ...], rounds: int, seconds: float, generator: str
) -> None:
    """Collectors and buffers of the front end under the near-free model, 32 clients.

    Without a VARIANT all of them run; a wrong name lists them. docs/jvm.md has our table.
    """
    from profiling.jvm import VARIANTS, format_table, measure_variants

    for variant in variants:
        if variant not in VARIANTS:
            raise ExpectedError(
                f"no variant {variant!r}; there are: {'; '.join(VARIANTS)}"
            )
    chosen = variants or tuple(VARIANTS)
    results = measure_variants(
        chosen, rounds, seconds, generator, lambda line: click.echo(line, err=True)
    )
    click.echo(format_table(results, chosen))
