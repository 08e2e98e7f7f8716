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


@command.command("ray")
@ARCHIVE
@OUTPUT
@FORCE
@click.option(
    "--replicas",
    metavar="N|LOW-HIGH",
    help="Fixed, or scaled by what is in flight.  [default: the archive's workers]",
)
@click.option(
    "--cpus",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Of each replica that decodes: what Ray reserves, and its threads.",
)
@click.option(
    "--decode-replicas",
    metavar="N|LOW-HIGH",
    help="Two tiers: replicas that only decode, on any node's CPUs, before the model's.  "
    "[default: the model's replicas decode]",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where HTTP listens; Ray's own control ports listen on all addresses.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option(
    "--image",
    default="REGISTRY/offpath-ray:TAG",
    show_default=True,
    help="Container image that rayservice.yaml names.",
)
def ray(replicas: str | None, decode_replicas: str | None, **asked: Any) -> None:
    """A Ray Serve application: for `serve run`, and a manifest for KubeRay.

    \b
    Example:
      offpath export ray .offpath/model-store/classifier.mar --output application --replicas 1-4
      cd application && PYTHONPATH=. serve run config.yaml
      offpath export ray t4.mar --output application --replicas 1 --decode-replicas 4-20
    """
    from offpath.deploy.ray.export import RayChoices, export_ray

    chosen = RayChoices(
        **asked,
        replicas=read_replicas("--replicas", replicas),
        decoders=read_replicas("--decode-replicas", decode_replicas),
    )
    for line in export_ray(chosen):
        click.echo(line)


def read_replicas(option: str, text: str | None) -> tuple[int, int] | None:
    """`3` or `1-4`."""
    if text is None:
        return None
    low, _, high = text.partition("-")
    try:
        return int(low), int(high or low)
    except ValueError as error:
        raise click.UsageError(f"{option} {text!r}: expected 3 or 1-4") from error
