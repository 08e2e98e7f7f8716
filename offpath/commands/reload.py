"""`offpath reload`: replaces the TorchServe behind a front door without a lost request."""

from __future__ import annotations

from pathlib import Path

import click

from offpath.commands.serve_options import (
    DEFAULT_LOG_DIR,
    RUNNING_OPTIONS,
)
from offpath.commands.shared_options import add_options
from offpath.serving.front.reload_requests import request_reload


@click.command(name="reload")
@add_options(*RUNNING_OPTIONS)
@click.option(
    "--timeout-s",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds to wait for the new server.",
)
def command(port: int, log_dir: Path | None, timeout_s: float) -> None:
    """Reload the archives behind a front door without dropping requests.

    Starts a new TorchServe, which reads the archives again. It gets requests once it is READY and
    its settings are checked. This command ends when no new request can reach the old server. If the
    new server fails, the old one continues and this command exits with 1 and the reason. A reload
    that is under way already has read the archives, so another one follows it.
    """
    request_reload(log_dir or DEFAULT_LOG_DIR / str(port), timeout_s)
    click.echo("reloaded")
