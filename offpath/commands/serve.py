"""`offpath serve`: TorchServe with our settings, checked before it is announced."""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from offpath.commands.front_options import DEFAULTS, front_options, make_front
from offpath.commands.serve_view import ServeView
from offpath.commands.shared_options import json_option
from offpath.handler.errors import WrongOption
from offpath.handler.prediction_log.log_settings import (
    SPOOL_VARIABLE,
    default_spool_dir,
)
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.one_host import serve_front
from offpath.serving.process.interrupts import Terminated, stopping_on_signals
from offpath.serving.torchserve.model_store import find_models
from offpath.serving.torchserve.properties import read_properties
from offpath.serving.torchserve.server_settings import ServerSettings
from offpath.serving.torchserve.session import serve

DEFAULT_STORE = Path(".offpath/model-store")
DEFAULT_LOG_DIR = Path(".offpath/logs")
# Options that are the server's, with a door before it or not; the others are the door's.
SERVER_OPTIONS = (
    *("host", "port", "management_port", "metrics_port", "grpc", "grpc_port"),
    *(
        "config",
        "enable_model_api",
        "token_auth",
        "allow_cpu",
        "fork_workers",
        "log_dir",
    ),
)
Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _port_option(name: str, default: int, text: str) -> Decorator:
    port = click.IntRange(0, 65535)
    return click.option(name, default=default, type=port, show_default=True, help=text)


@click.command(name="serve")
@click.argument("models", nargs=-1, metavar="[PATH.mar|NAME|NAME=PATH.mar|FOLDER]...")
@click.option(
    "--model-store",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_STORE,
    show_default=True,
    help="Folder with the archives that are named without a path.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where inference and metrics listen; management stays on loopback.",
)
@_port_option("--port", 8080, "Inference; 0: a free one.")
@click.option(
    "--management-port",
    type=click.IntRange(0, 65535),
    help="A port of loopback for TorchServe's management API; 0: a free one. Every user of this "
    "machine can then stop your models [default: a Unix socket of your own, printed at the "
    "start].",
)
@_port_option("--metrics-port", 8082, "0: a free one.")
@_port_option(
    "--grpc-port",
    0,
    "gRPC's inference API, on loopback; opens it, as --grpc does on a free port.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A config.properties instead of ours; its addresses and load_models give way to the "
    "options.",
)
@click.option(
    "--enable-model-api",
    is_flag=True,
    help="Let models be registered and removed over HTTP.",
)
@click.option(
    "--grpc",
    is_flag=True,
    help="Open TorchServe's two gRPC ports, on loopback: with them every user of this machine can "
    "stop your models, unless --token-auth.",
)
@click.option(
    "--token-auth",
    is_flag=True,
    help="Every call needs a token of TorchServe's; with --front take --tokens.",
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="Listen on any --host without tokens: a proxy before it does TLS and asks for them.",
)
@click.option(
    "--allow-cpu",
    is_flag=True,
    help="Serve an archive that asks for a GPU (--preset t4) on the CPU where there is none.",
)
@click.option(
    "--fork-workers/--no-fork-workers",
    default=True,
    show_default=True,
    help="Fork workers from one process that has imported torch: they start at once and share "
    "its memory (Linux).",
)
@click.option(
    "--verbose", is_flag=True, help="TorchServe's log lines for every request."
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Folder for the log files [default: {DEFAULT_LOG_DIR}/PORT; with port 0 none stays].",
)
@click.option(
    "--drain-s",
    type=click.IntRange(1),
    default=DEFAULTS.drain_s,
    show_default=True,
    help="How long requests in flight may still take at SIGTERM or Ctrl-C, and the old server's "
    "at a reload. Without --front, first let nobody send more: TorchServe goes on accepting.",
)
@click.option(
    "--ship-s",
    type=click.FloatRange(0),
    default=0.0,
    help="After the end, deliver what the prediction log's spool still holds, for at most so long: "
    "where the spool goes with the machine and nobody else ships it [default: do not].",
)
@click.option(
    "--sample", is_flag=True, help="Send the bundled photograph and show the answer."
)
@click.option(
    "--once", is_flag=True, help="Stop as soon as it was READY (and sampled)."
)
@json_option("Print what is in force as JSON.")
@front_options
def command(
    models: tuple[str, ...],
    model_store: Path,
    verbose: bool,
    drain_s: int,
    ship_s: float,
    sample: bool,
    once: bool,
    as_json: bool,
    behind_proxy: bool,
    **options: Any,
) -> None:
    """Serve archives with TorchServe until Ctrl-C or SIGTERM; by default all of the store.

    \b
    Examples:
      offpath serve                                  all of .offpath/model-store
      offpath serve defects.mar faces=/models/f2.mar
      offpath serve /models                          all of a folder
    """
    own = {name: options.pop(name) for name in SERVER_OPTIONS}
    listening = {name: own[name] for name in ("host", "port", "metrics_port")}
    front = make_front(options, **listening, verbose=verbose, drain_s=drain_s)
    # A file that asks for tokens gets them: the option's absence must not switch them off.
    own["token_auth"] = own["token_auth"] or wants_tokens(own["config"])
    check_host(own["host"], own["token_auth"], front, behind_proxy)
    view = ServeView(as_json)
    if behind_proxy:
        view.show_problem(
            f"--behind-proxy: whoever reaches {own['host']} is answered, without TLS and tokens; "
            "the proxy must be the only one who does"
        )

    def find_settings() -> ServerSettings:
        store, entries = find_models(model_store, models, Path(links))
        return make_settings(store, entries, verbose=verbose, **own)

    try:
        with tempfile.TemporaryDirectory(
            prefix="offpath-store-"
        ) as links, stopping_on_signals():
            try:
                if front is None:
                    serve(find_settings(), view, drain_s, sample=sample, once=once)
                else:
                    serve_front(find_settings, front, view, sample=sample, once=once)
            finally:
                if ship_s:
                    ship_rest(view, ship_s)
    except Terminated:
        click.echo("stopped", err=True)


def ship_rest(view: ServeView, timeout_s: float) -> None:
    """Delivers what the workers, now dead, left in the spool."""
    from offpath.serving.log_tools.shipping import ship_spool

    spool = Path(os.environ.get(SPOOL_VARIABLE) or default_spool_dir(os.environ))
    if not spool.is_dir():
        return
    with view.waiting("delivering the prediction log ..."):
        report = ship_spool(spool, timeout_s)
    if report.errors:
        view.show_problem(
            f"{report.left_segments} segments of the prediction log are left in {spool}: "
            f"{'; '.join(report.errors.values())}"
        )


def make_settings(
    store: Path,
    entries: tuple[str, ...],
    *,
    port: int,
    grpc: bool,
    grpc_port: int,
    log_dir: Path | None,
    **same: Any,
) -> ServerSettings:
    """What the options ask for; `same` are those that the settings call alike."""
    return ServerSettings(
        model_store=store,
        models=entries,
        inference_port=port,
        grpc=grpc or grpc_port > 0,
        grpc_port=grpc_port,
        log_dir=log_dir or (DEFAULT_LOG_DIR / str(port) if port else None),
        **same,
    )


def wants_tokens(config: Path | None) -> bool:
    """Whether a properties file turns token authorization on."""
    if config is None:
        return False
    return read_properties(config).get("disable_token_authorization") == "false"


def check_host(
    host: str,
    token_auth: bool,
    front: DoorSettings | None = None,
    behind_proxy: bool = False,
) -> None:
    """Refuses to listen beyond this machine without tokens.

    Raises:
        WrongOption: `host` is not loopback and tokens are off, or it is an IPv6 address and
            there is no front door, or both kinds of tokens are asked for.
    """
    if front is not None and token_auth:
        raise WrongOption(
            "with --front nobody reaches TorchServe but the door: take --tokens FILE instead of "
            "--token-auth"
        )
    if ":" in host and front is None:
        # ConfigManager.java, ADDRESS_PATTERN.
        raise WrongOption(
            f"--host {host}: TorchServe takes no IPv6 address; name an IPv4 one or a host"
        )
    has_tokens = token_auth if front is None else front.tokens is not None
    if has_tokens or behind_proxy or host == "localhost":
        return
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        option = "--token-auth" if front is None else "--tokens FILE"
        raise WrongOption(
            f"--host {host} can be reached from other machines; add {option}, or --behind-proxy "
            "where a proxy does TLS and asks for tokens"
        )
