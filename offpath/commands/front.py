"""`offpath front`: the front door alone, before TorchServes on several hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from offpath.commands.serve_options import (
    DEFAULTS,
    DOOR_OPTIONS,
    LIMITS,
    LISTEN_OPTIONS,
    METRICS_PORT,
    RUN_OPTIONS,
    check_host,
    choose_log_dir,
    limit_option,
)
from offpath.commands.serve_view import ServeView
from offpath.commands.shared_options import add_options
from offpath.errors import ExpectedError
from offpath.serving.front.behind import Behind
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.several_hosts import serve_hosts
from offpath.serving.process.interrupts import Terminated, stopping_on_signals

HOST_LIMITS = {
    **LIMITS,
    # Just under the 512 requests that a host's own door accepts from one address.
    "queue": (
        500,
        "requests that each host may hold (503); a host's own door accepts "
        f"{DEFAULTS.client_connections} from one address",
    ),
    # Clients often wait 30 s, which leaves a second host time to answer.
    "answer-timeout-s": (
        20,
        "seconds that a host may take before another host is asked; more than a full queue takes",
    ),
    "max-body-mb": (32, "size of a request's body, as the hosts' max_request_size (413)"),
}


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
@limit_option(HOST_LIMITS)
@add_options(*RUN_OPTIONS)
@add_options(*DOOR_OPTIONS)
def command(
    hosts: tuple[str, ...],
    host: str,
    port: int,
    behind_proxy: bool,
    metrics_port: int,
    limits: dict[str, int],
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
    defaults = {name.replace("-", "_"): value for name, (value, _) in HOST_LIMITS.items()}
    limits = {**defaults, **limits}
    queue, answer_timeout_s = limits.pop("queue"), limits.pop("answer_timeout_s")
    max_body_bytes = limits.pop("max_body_mb") << 20
    door |= {"metrics_port": metrics_port, "verbose": verbose, "drain_s": drain_s}
    settings = DoorSettings(host, port, **{**door, **limits})
    check_host(host, settings, behind_proxy)
    try:
        behind = Behind(False, max_body_bytes, answer_timeout_s, queue, hosts)
    except ExpectedError as error:
        raise click.UsageError(str(error)) from error
    log_dir = choose_log_dir(log_dir, port)
    try:
        with stopping_on_signals():
            serve_hosts(settings, behind, ServeView(as_json), log_dir)
    except Terminated:
        click.echo("stopped", err=True)
