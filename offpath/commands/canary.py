"""`offpath canary`: changes the canaries and shadows of a running front door."""

from __future__ import annotations

import json

import click

from offpath.commands.declared_options import argument, option, takes_options
from offpath.commands.serve_options import SPLITS
from offpath.commands.url_option import DOOR_HELP, find_door
from offpath.serving.front.reload_requests import ask_door
from offpath.serving.front.splits import Split, parse_split


@click.command(name="canary")
@takes_options
def command(
    canaries: tuple[Split, ...] = argument("[MODEL=VERSION:SHARE%]...", type=parse_split, nargs=-1),
    shadow: tuple[Split, ...] = option(
        "Begin or change a shadow instead of a canary. Can be repeated.", **SPLITS
    ),
    stop: tuple[str, ...] = option(
        "End the canary or shadow of a model. Can be repeated.", multiple=True, metavar="MODEL"
    ),
    url: str | None = option(DOOR_HELP),
    as_json: bool = option("Print what is in force as JSON.", "--json"),
) -> None:
    """Change the share of a canary or shadow without a restart, or show what is in force.

    New connections follow at once, and connections that clients have kept within about a second.
    Clients that get the canary already keep it while its share grows. A model has either a canary
    or a shadow, so one ends the other; the output says so. A restart of `offpath serve` begins with
    the shares of its own options.

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
    in_force = ask_door(find_door(url), change)
    if as_json:
        click.echo(json.dumps(in_force))
        return
    for what, splits in in_force.items():
        if splits or what in ("canary", "shadow"):
            click.echo(f"{what}: {', '.join(splits) or 'none'}")
