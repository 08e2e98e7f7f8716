"""`offpath export`: the same archive for another server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def export_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--output",
            type=click.Path(path_type=Path, file_okay=False),
            required=True,
            help="Folder to write to, new or empty.",
        ),
        click.argument("path", metavar="ARCHIVE", type=click.Path(path_type=Path, dir_okay=False)),
    ):
        command = option(command)
    return command


@click.group("export")
def command() -> None:
    """Export an archive (.mar) for another server.

    The archive's own handler answers there too, with the same settings, parity gate, errors,
    metrics and prediction log. docs/where-to-serve.md helps to choose a server;
    docs/exports.md describes both exports.
    """


@command.command("triton")
@export_options
@click.option(
    "--thin",
    "is_thin",
    is_flag=True,
    help="Take the model's pixels, uint8 [height, width, channels], instead of an image file.",
)
def triton(**options: Any) -> None:
    """Write a Triton model repository.

    Triton Inference Server runs the archive with its python backend. config.pbtxt has the archive's
    number of workers as the number of processes.

    \b
    Example:
      offpath export triton .offpath/model-store/classifier.mar --output repository
      tritonserver --model-repository=repository
    """
    from offpath.deploy.triton.triton_export import export_triton

    for line in export_triton(**options):
        click.echo(line)


@command.command("ray")
@export_options
@click.option(
    "--replicas",
    metavar="N|LOW-HIGH",
    callback=lambda _, __, text: read_replicas(text),
    help="Number of replicas; with a range, Ray follows the requests in flight.  [default: the "
    "archive's number of workers]",
)
@click.option(
    "--cpus",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Cores that Ray reserves for each replica; also its decode threads.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address on which HTTP listens. Ray's control ports listen on all addresses.",
)
def ray(**options: Any) -> None:
    """Write a Ray Serve application.

    It runs with `serve run`, or on Kubernetes with the manifest for KubeRay, after you have named
    your image in it. The port is in config.yaml.

    \b
    Example:
      offpath export ray .offpath/model-store/classifier.mar --output application --replicas 1-4
      cd application && PYTHONPATH=. serve run config.yaml
    """
    from offpath.deploy.ray.ray_export import export_ray

    for line in export_ray(**options):
        click.echo(line)


def read_replicas(text: str | None) -> tuple[int, int] | None:
    """Reads the number or range of `--replicas`; raises BadParameter for another text."""
    if text is None:
        return None
    low, _, high = text.partition("-")
    with contextlib.suppress(ValueError):
        if 0 < int(low) <= int(high or low):
            return int(low), int(high or low)
    raise click.BadParameter(f"{text!r}: expected a number like 3, or a range like 1-4")
