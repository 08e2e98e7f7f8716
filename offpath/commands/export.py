"""`offpath export`: the same archive for another server."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from offpath.commands.declared_options import argument, option, takes_options
from offpath.commands.shared_options import ARCHIVE, FOLDER

PATH: Path = argument("ARCHIVE", type=ARCHIVE)
OUTPUT: Path = option("Folder to write to, new or empty.", type=FOLDER, required=True)


@click.group("export")
def command() -> None:
    """Export an archive (.mar) for another server.

    ARCHIVE is a path or a name in .offpath/model-store. The archive's own handler answers there
    too, with the same settings, parity gate, errors, metrics and prediction log.
    docs/where-to-serve.md helps to choose a server; docs/exports.md describes both exports.
    """


@command.command("triton")
@takes_options
def triton(path: Path = PATH, output: Path = OUTPUT) -> None:
    """Write a Triton model repository.

    Triton Inference Server runs the archive with its python backend. config.pbtxt has the archive's
    number of workers as the number of processes.

    \b
    Example:
      offpath export triton .offpath/model-store/classifier.mar --output repository
      tritonserver --model-repository=repository
    """
    from offpath.deploy.triton.triton_export import export_triton

    for line in export_triton(path, output):
        click.echo(line)


@command.command("ray")
@takes_options
def ray(
    path: Path = PATH,
    output: Path = OUTPUT,
    replicas: tuple[int, int] | None = option(
        "Number of replicas; with a range, Ray follows the requests in flight.  [default: the "
        "archive's number of workers]",
        metavar="N|LOW-HIGH",
        type=str,
        callback=lambda _, __, text: read_replicas(text),
    ),
    cpus: int = option(
        "Cores that Ray reserves for each replica; also its decode threads.",
        type=click.IntRange(1),
        default=1,
    ),
    host: str = option(
        "Address on which HTTP listens. Ray's control ports listen on all addresses.",
        default="127.0.0.1",
    ),
) -> None:
    """Write a Ray Serve application.

    It runs with `serve run`, or on Kubernetes with the manifest for KubeRay, after you have named
    your image in it. The port is in config.yaml.

    \b
    Example:
      offpath export ray .offpath/model-store/classifier.mar --output application --replicas 1-4
      cd application && PYTHONPATH=. serve run config.yaml
    """
    from offpath.deploy.ray.ray_export import export_ray

    for line in export_ray(path, output, replicas, cpus, host):
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
