"""`offpath front`: the front door alone, before TorchServes on several hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from offpath.commands.serve_options import (
    DEFAULTS,
    DOOR_OPTIONS,
    LISTEN_OPTIONS,
    METRICS_PORT,
    RUN_OPTIONS,
    check_host,
    choose_log_dir,
)
from offpath.commands.serve_view import ServeView
from offpath.commands.shared_options import add_options
from offpath.handler.errors import ExpectedError
from offpath.serving.front.behind import Behind
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.several_hosts import serve_hosts
from offpath.serving.process.interrupts import Terminated, stopping_on_signals

# Just under the 512 requests that a host's own door accepts from one address.
HOST_QUEUE = 500
# Clients often wait 30 s, which leaves a second host time to answer.
ANSWER_TIMEOUT_S = 20
MAX_BODY_MB = 32


@click.command(name="front")
@click.option(
    "--upstream",
    "hosts",
    multiple=True,
    required=True,
    metavar="HOST:PORT",
    help="Address of a host's `offpath serve`. Can be repeated. A name is resolved once.",
)
@add_options(*LISTEN_OPTIONS)
@METRICS_PORT
@click.option(
    "--queue",
    type=click.IntRange(1),
    default=HOST_QUEUE,
    show_default=True,
    help="Requests that each host may hold; when all hosts hold that many, more get 503. A host's "
    f"own door accepts {DEFAULTS.client_connections} from one address (its --client-connections).",
)
@click.option(
    "--answer-timeout-s",
    type=click.IntRange(1),
    default=ANSWER_TIMEOUT_S,
    show_default=True,
    help="Seconds that a host may take for an answer before another host is asked. Set it above "
    "the time for a full --queue: 500 requests at 25 per second take 20 s.",
)
@click.option(
    "--max-body-mb",
    type=click.IntRange(1),
    default=MAX_BODY_MB,
    show_default=True,
    help="Size limit of a request's body; larger bodies get 413. Set it to the hosts' "
    "max_request_size.",
)
@add_options(*RUN_OPTIONS)
@add_options(*DOOR_OPTIONS)
def command(
    hosts: tuple[str, ...],
    host: str,
    port: int,
    behind_proxy: bool,
    metrics_port: int,
    queue: int,
    answer_timeout_s: int,
    max_body_mb: int,
    drain_s: int,
    log_dir: Path | None,
    verbose: bool,
    as_json: bool,
    **door: Any,
) -> None:
    """Put one front door before TorchServes on several hosts, until Ctrl-C or SIGTERM.

    A request that one host did not answer goes to another host. Hosts can die or be restarted one
    after the other without a failed request. /ping answers 200 while any host is READY.

    \b
    Example: the first command on each host, the second in front of them:
      offpath serve --front --host 10.0.0.11 --behind-proxy --front-keys keys.txt
      offpath front --front-keys keys.txt --upstream 10.0.0.11:8080 --upstream 10.0.0.12:8080
    """
    door |= {"metrics_port": metrics_port, "verbose": verbose, "drain_s": drain_s}
    settings = DoorSettings(host, port, **door)
    check_host(host, settings, behind_proxy)
    try:
        behind = Behind(False, max_body_mb << 20, answer_timeout_s, queue, hosts)
    except ExpectedError as error:
        raise click.UsageError(str(error)) from error
    log_dir = choose_log_dir(log_dir, port)
    try:
        with stopping_on_signals():
            serve_hosts(settings, behind, ServeView(as_json), log_dir)
    except Terminated:
        click.echo("stopped", err=True)
