"""`offpath reload`: replaces the server behind a front door without a lost request."""

from __future__ import annotations

import click

from offpath.commands.declared_options import option, takes_options
from offpath.commands.shared_options import SERVERS
from offpath.commands.url_option import DOOR_HELP, find_door
from offpath.serving.front.reload_requests import ask_door


@click.command(name="reload")
@takes_options
def command(
    url: str | None = option(DOOR_HELP),
    server: str | None = option(
        "Kind of the new server, also for later reloads [default: that of the running one].",
        type=SERVERS,
    ),
) -> None:
    """Reload the archives behind a front door without dropping requests.

    Starts a new server, which reads the archives again. It gets requests once it is READY and its
    settings are checked. This command ends when no new request can reach the old server. If the
    new server fails, the old one continues and this command exits with 1 and the reason. A reload
    that is under way already has read the archives, so another one follows it.
    """
    ask_door(find_door(url), {"server": server})
    click.echo("reloaded")
