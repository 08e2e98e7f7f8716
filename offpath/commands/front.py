"""`offpath front`: the front door alone, before TorchServes on several hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from offpath.commands.front_options import DEFAULTS, DOOR_OPTIONS, add_options
from offpath.commands.serve import DEFAULT_LOG_DIR, check_host
from offpath.commands.serve_view import ServeView
from offpath.commands.shared_options import json_option
from offpath.handler.errors import ExpectedError
from offpath.serving.front.behind import Behind
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.several_hosts import serve_hosts
from offpath.serving.process.interrupts import Terminated, stopping_on_signals

# A host's own door lets one address have 512 at a time.
HOST_QUEUE = 500
# Clients often wait for 30 s: a second host has to have its time.
ANSWER_TIMEOUT_S = 20
MAX_BODY_MB = 32


def door_options(command: Any) -> Any:
    """Those that `offpath serve --front` has too; they come as `**front`."""
    return add_options(command, DOOR_OPTIONS)


@click.command(name="front")
@click.option(
    "--upstream",
    "hosts",
    multiple=True,
    required=True,
    metavar="HOST:PORT",
    help="Where a host's `offpath serve` listens; given once for each. A name is resolved once.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="To listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="0: a free one.",
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="Listen on any --host without tokens: a proxy before it does TLS and asks for them.",
)
@click.option(
    "--queue",
    type=click.IntRange(1),
    default=HOST_QUEUE,
    show_default=True,
    help="Requests that one host may have at a time; 503 when all have so many. A host's own door "
    f"takes {DEFAULTS.client_connections} of one address (its --client-connections).",
)
@click.option(
    "--answer-timeout-s",
    type=click.IntRange(1),
    default=ANSWER_TIMEOUT_S,
    show_default=True,
    help="How long a host may take for an answer, then another one is asked. More than what a "
    "full --queue takes: 500 at 25 a second are 20 s.",
)
@click.option(
    "--max-body-mb",
    type=click.IntRange(1),
    default=MAX_BODY_MB,
    show_default=True,
    help="Larger requests get 413; as the hosts' max_request_size.",
)
@click.option(
    "--drain-s",
    type=click.IntRange(1),
    default=DEFAULTS.drain_s,
    show_default=True,
    help="How long requests in flight may still take at SIGTERM or Ctrl-C.",
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Folder for nginx's logs [default: {DEFAULT_LOG_DIR}/PORT; with port 0 none stays].",
)
@click.option("--verbose", is_flag=True, help="A log line for every request.")
@json_option("Print where it listens as JSON.")
@door_options
def command(
    hosts: tuple[str, ...],
    host: str,
    port: int,
    behind_proxy: bool,
    queue: int,
    answer_timeout_s: int,
    max_body_mb: int,
    drain_s: int,
    log_dir: Path | None,
    verbose: bool,
    as_json: bool,
    **door: Any,
) -> None:
    """Put one door before TorchServes on several hosts, until Ctrl-C or SIGTERM.

    What a host did not answer goes to another one, so that hosts can be restarted one after the
    other, or die, without a failed request. /ping says whether any host is READY.

    \b
    Example, on each host and then before them:
      offpath serve --front --host 10.0.0.11 --behind-proxy --client-ids
      offpath front --upstream 10.0.0.11:8080 --upstream 10.0.0.12:8080
    """
    # No port of its own for metrics: the hosts have theirs.
    settings = DoorSettings(
        host, port, metrics_port=0, verbose=verbose, drain_s=drain_s, **door
    )
    check_host(host, False, settings, behind_proxy)
    try:
        behind = Behind(False, max_body_mb << 20, answer_timeout_s, queue, hosts)
    except ExpectedError as error:
        raise click.UsageError(str(error)) from error
    log_dir = log_dir or (DEFAULT_LOG_DIR / str(port) if port else None)
    try:
        with stopping_on_signals():
            serve_hosts(settings, behind, ServeView(as_json), log_dir)
    except Terminated:
        click.echo("stopped", err=True)
