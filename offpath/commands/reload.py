"""`offpath reload`: another TorchServe in the place of the running one, without a lost request."""

from __future__ import annotations

from pathlib import Path

import click

from offpath.commands.serve import DEFAULT_LOG_DIR
from offpath.serving.front.state import request_reload


@click.command(name="reload")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8080,
    show_default=True,
    help="Of the `offpath serve --front`.",
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Its --log-dir [default: {DEFAULT_LOG_DIR}/PORT].",
)
@click.option(
    "--timeout-s",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="How long to wait for the new server.",
)
def command(port: int, log_dir: Path | None, timeout_s: float) -> None:
    """Replace the TorchServe behind a front door; the archives are read anew.

    The new one is READY and checked before it gets requests; otherwise the old one goes on, and
    this command fails with the reason.
    """
    request_reload(log_dir or DEFAULT_LOG_DIR / str(port), timeout_s)
    click.echo("reloaded")
