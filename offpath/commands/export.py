"""`offpath export`: the same archive for another server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

ARCHIVE = click.argument("archive", type=click.Path(path_type=Path, dir_okay=False))
OUTPUT = click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder to write; it must be empty, or an export that --force replaces.",
)
FORCE = click.option("--force", is_flag=True, help="Replace an earlier export.")


@click.group("export")
def command() -> None:
    """Write an archive (.mar) as another server takes it.

    The archive's own handler answers there too: the same settings, parity gate, errors, metrics
    and prediction log. docs/after-torchserve.md says which server to choose.
    """


@command.command("triton")
@ARCHIVE
@OUTPUT
@FORCE
@click.option("--name", help="Of the model.  [default: the archive's]")
@click.option(
    "--instances",
    type=click.IntRange(1),
    help="Processes, on each GPU where the archive asks for one.  [default: the archive's workers]",
)
@click.option(
    "--thin",
    "is_thin",
    is_flag=True,
    help="The input is the model's pixels, uint8 [size, size, 3], instead of a file.",
)
def triton(**asked: Any) -> None:
    """A model repository for Triton Inference Server's python backend.

    \b
    Example:
      offpath export triton .offpath/model-store/classifier.mar --output repository
      tritonserver --model-repository=repository
    """
    from offpath.deploy.triton.export import TritonChoices, export_triton

    for line in export_triton(TritonChoices(**asked)):
        click.echo(line)
