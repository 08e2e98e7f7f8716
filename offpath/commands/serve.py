"""`offpath serve`: starts TorchServe or Granian and checks its settings before it is announced."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from offpath.archive.mar_file import read_archives
from offpath.commands.serve_options import (
    SERVE_OPTIONS,
    check_host,
    choose_log_dir,
    make_door_settings,
)
from offpath.commands.serve_view import ServeView
from offpath.commands.shared_options import add_options
from offpath.commands.variables import find_unread_variables
from offpath.errors import WrongOption
from offpath.serving.check.spelling import (
    find_unread_models,
    find_unread_properties,
    find_unread_settings,
)
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.one_host import serve_behind_door
from offpath.serving.process.interrupts import Terminated, stopping_on_signals
from offpath.serving.process.tmp_folders import tmp_dir
from offpath.serving.server.model_settings import list_wanted
from offpath.serving.server.model_store import find_models
from offpath.serving.server.server_settings import (
    DEFAULTS,
    LOOPBACK,
    ServerSettings,
    load_config,
    read_address,
)
from offpath.serving.session import serve

# Options of TorchServe itself, with or without a front door; the rest are the door's.
SERVER_OPTIONS = (
    *("host", "port", "metrics_port", "grpc_port"),
    *("config", "lenient", "allow_cpu", "log_dir", "server"),
)
BY_ADDRESS = (
    "--canary tells clients apart by their address, and behind a proxy or a balancer all clients "
    "have the same, so all get the canary or none; add --canary-by HEADER, such as x-user-id"
)


@click.command(name="serve")
@click.argument("models", nargs=-1, metavar="[PATH.mar|NAME|NAME=PATH.mar|FOLDER]...")
@add_options(*SERVE_OPTIONS)
def command(
    models: tuple[str, ...],
    model_store: Path,
    verbose: bool,
    drain_s: int,
    sample: bool,
    once: bool,
    as_json: bool,
    behind_proxy: bool,
    **options: Any,
) -> None:
    """Serve archives with TorchServe or Granian until Ctrl-C or SIGTERM.

    Without arguments, all archives of --model-store are served. At the end, requests in flight are
    answered. Without --front, stop the traffic first, because TorchServe accepts requests until it
    exits.

    \b
    Examples:
      offpath serve                                  all of .offpath/model-store
      offpath serve defects.mar faces=/models/f2.mar
      offpath serve /models                          all archives of a folder
      offpath serve v1.mar v2.mar --front --canary defects=2.0:5%
    """
    server_options = {name: options.pop(name) for name in SERVER_OPTIONS}
    config, is_granian = server_options["config"], server_options["server"] == "granian"
    view = ServeView(as_json)
    if config is not None:
        properties = load_config(config)
        check_tokens(config, properties)
        server_options |= choose_addresses(properties, is_granian)
    listening = {name: server_options[name] for name in ("host", "port", "metrics_port")}
    door = make_door_settings(options, is_granian, **listening, verbose=verbose, drain_s=drain_s)
    if is_granian and door is None:  # which would have checked them
        server_options["allow_host"] = DoorSettings(allow_host=options["allow_host"]).allow_host
    check_host(server_options["host"], door, behind_proxy)
    if door is not None and door.canary and not door.canary_by:
        if behind_proxy:
            raise WrongOption(BY_ADDRESS)
        view.show_problem(BY_ADDRESS)
    if behind_proxy:
        view.show_problem(
            f"--behind-proxy: {server_options['host']} answers everybody, without TLS and "
            "tokens; make sure that only the proxy can reach it"
        )

    def find_settings(kind: str | None = None) -> ServerSettings:
        asked = {**server_options, "server": kind or server_options["server"]}
        if asked["server"] == "granian" and asked["grpc_port"] is not None:
            raise WrongOption("--grpc-port needs --server torchserve")
        loaded = load_config(config) if config else {}
        store, entries = find_models(model_store, models or list_wanted(loaded), links)
        for problem in find_unread(config, loaded, store, entries):
            if not server_options["lenient"]:
                raise WrongOption(f"{problem}; --lenient starts all the same")
            view.show_problem(problem)
        port = asked.pop("port")
        log_dir = choose_log_dir(asked.pop("log_dir"), port)
        return ServerSettings(
            store, entries, inference_port=port, log_dir=log_dir, verbose=verbose, **asked
        )

    try:
        with tmp_dir() as links, stopping_on_signals():
            if door is None:
                serve(find_settings(), view, drain_s, sample=sample, once=once)
            else:
                serve_behind_door(find_settings, door, view, sample=sample, once=once)
    except Terminated:
        click.echo("stopped", err=True)


def choose_addresses(loaded: Mapping[str, str], is_granian: bool) -> dict[str, str | int]:
    """Returns the addresses of a properties file that no option replaces.

    Of metrics_address the port is taken, because --host and --metrics-host decide who can read
    /metrics. Management stays a socket, unless only this machine can reach Granian's at a port of
    its own.

    Raises:
        WrongOption: an address is not of the form http://HOST:PORT.
    """
    properties = {**DEFAULTS, **loaded}
    host, port = read_address(properties, "inference_address")
    _, metrics_port = read_address(properties, "metrics_address")
    management_host, management_port = read_address(properties, "management_address")
    source = click.get_current_context().get_parameter_source
    found: dict[str, str | int] = {"host": host, "port": port, "metrics_port": metrics_port}
    is_own = "management_address" in loaded and management_port not in found.values()
    if is_granian and is_own and management_host == LOOPBACK:
        found["management_port"] = management_port
    given = ParameterSource.COMMANDLINE
    return {option: value for option, value in found.items() if source(option) is not given}


def find_unread(
    config: Path | None, properties: Mapping[str, str], store: Path, entries: tuple[str, ...]
) -> Iterator[str]:
    """Yields a line for each setting that no server reads."""
    found = [*find_unread_properties(str(config), properties)]
    found += find_unread_models(str(config), properties)
    for _, archive in read_archives(store, entries):
        found += find_unread_settings(f"model-config.yaml of {archive.path}", archive)
    yield from (f"{one.area}: {one.found}; {one.cure}" for one in found)
    yield from find_unread_variables(os.environ)


def check_tokens(config: Path, properties: Mapping[str, str]) -> None:
    """Refuses a properties file that asks for TorchServe's tokens, so that none are lost silently.

    Raises:
        WrongOption: the file turns on token authorization.
    """
    key = "disable_token_authorization"
    if properties.get(key, "").lower() == "false":
        raise WrongOption(
            f"{config} asks for TorchServe's tokens ({key}=false), which `offpath serve` cannot "
            "use; remove that line and use --front --tokens FILE"
        )
