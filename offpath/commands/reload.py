"""`offpath reload`: replaces the server behind a front door without a lost request."""

from __future__ import annotations

from dataclasses import dataclass

import click

from offpath.commands.declared_options import option, takes
from offpath.commands.shared_options import SERVERS
from offpath.commands.url_option import DOOR_HELP, find_door
from offpath.serving.front.reload_requests import request_reload

# A server that is not READY by then will hardly be.
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class ReloadOptions:
    """Options of `offpath reload`."""

    url: str | None = option(DOOR_HELP)
    server: str | None = option(
        "Kind of the new server, also for later reloads [default: that of the running one].",
        type=SERVERS,
    )


@click.command(name="reload")
@takes(ReloadOptions)
def command(options: ReloadOptions) -> None:
    """Reload the archives behind a front door without dropping requests.

    Starts a new server, which reads the archives again. It gets requests once it is READY and its
    settings are checked. This command ends when no new request can reach the old server. If the
    new server fails, the old one continues and this command exits with 1 and the reason. A reload
    that is under way already has read the archives, so another one follows it.
    """
    request_reload(find_door(options.url), TIMEOUT_S, options.server)
    click.echo("reloaded")
