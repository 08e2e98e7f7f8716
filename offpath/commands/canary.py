"""`offpath canary`: changes the canaries and shadows of a running front door."""

from __future__ import annotations

import json
from pathlib import Path

import click

from offpath.commands.serve_options import (
    DEFAULT_LOG_DIR,
    RUNNING_OPTIONS,
    split_option,
)
from offpath.commands.shared_options import add_options, json_option
from offpath.serving.front.reload_requests import request_change
from offpath.serving.front.splits import Split, parse_split


@click.command(name="canary")
@click.argument(
    "canaries",
    nargs=-1,
    metavar="[MODEL=VERSION:SHARE%]...",
    callback=lambda _, __, texts: tuple(map(parse_split, texts)),
)
@split_option("shadow", "Begin or change a shadow instead of a canary.")
@click.option(
    "--stop",
    multiple=True,
    metavar="MODEL",
    help="End the canary or shadow of a model. Can be repeated.",
)
@add_options(*RUNNING_OPTIONS)
@json_option("Print what is in force as JSON.")
def command(
    canaries: tuple[Split, ...],
    shadow: tuple[Split, ...],
    stop: tuple[str, ...],
    port: int,
    log_dir: Path | None,
    as_json: bool,
) -> None:
    """Change the share of a canary or shadow without a restart, or show what is in force.

    New connections follow at once, and connections that clients have kept within about a second.
    Clients that get the canary already keep it while its share grows. A restart of `offpath serve`
    begins with the shares of its own options.

    \b
    Examples:
      offpath canary                         shows what is in force
      offpath canary defects=2.0:25%
      offpath canary --stop defects          back to one version
    """
    change = {
        "canary": list(map(str, canaries)),
        "shadow": list(map(str, shadow)),
        "stop": list(stop),
    }
    in_force = request_change(log_dir or DEFAULT_LOG_DIR / str(port), change)
    if as_json:
        click.echo(json.dumps(in_force))
        return
    for kind, splits in in_force.items():
        click.echo(f"{kind}: {', '.join(splits) or 'none'}")
