"""`offpath serve`: starts TorchServe or Granian and checks its settings before it is announced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, replace
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
from offpath.serving.front.door_settings import DoorSettings, read_tokens
from offpath.serving.front.one_host import DoorSession, Session, serve
from offpath.serving.front.upstreams import plan_upstreams
from offpath.serving.process.interrupts import Terminated, noting_hangup, stopping_on_signals
from offpath.serving.process.tmp_folders import tmp_dir
from offpath.serving.server.model_store import find_models
from offpath.serving.server.plan import plan_server
from offpath.serving.server.properties import Properties, load_properties
from offpath.serving.server.server_settings import LOOPBACK, ServerSettings

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
    dry_run: bool,
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
        server_options |= choose_addresses(load_properties(config), is_granian)
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
    port = server_options.pop("port")
    server_options["log_dir"] = choose_log_dir(server_options["log_dir"], port)

    def find_settings(kind: str | None = None) -> ServerSettings:
        asked = {**server_options, "server": kind or server_options["server"]}
        if asked["server"] == "granian" and asked["grpc_port"] is not None:
            raise WrongOption("--grpc-port needs --server torchserve")
        loaded = load_properties(config)
        store, entries = find_models(model_store, models or loaded.list_wanted(), links)
        for problem in find_unread(config, loaded, store, entries):
            if not asked["lenient"]:
                raise WrongOption(f"{problem}; --lenient starts all the same")
            view.show_problem(problem)
        return ServerSettings(store, entries, inference_port=port, verbose=verbose, **asked)

    try:
        with tmp_dir() as links, stopping_on_signals(), noting_hangup() as hangup:
            if dry_run:
                view.show_plan(describe_plan(find_settings(), door))
                return
            if door is None:
                session = Session(find_settings, view, hangup, drain_s)
            else:
                session = DoorSession(find_settings, door, view, hangup)
            serve(session, view, sample=sample, once=once)
    except Terminated:
        click.echo("stopped", err=True)


def describe_plan(settings: ServerSettings, door: DoorSettings | None) -> dict[str, Any]:
    """Returns what would run, after the checks that need no running server."""
    plan = plan_server(settings)
    if door is None:
        plan.check_needs_no_door()
        return plan.describe()
    if door.tokens is not None:
        read_tokens(door.tokens)
    upstreams = plan_upstreams(plan, door)
    return {**replace(plan, queue=upstreams.queue).describe(), "door": asdict(door)}


def choose_addresses(properties: Properties, is_granian: bool) -> dict[str, str | int]:
    """Returns the addresses of a properties file that no option replaces.

    Of metrics_address the port is taken, because --host and --metrics-host decide who can read
    /metrics. Management stays a socket, unless only this machine can reach Granian's at a port of
    its own.
    """
    host, port = properties.inference_address
    _, metrics_port = properties.metrics_address
    management_host, management_port = properties.management_address
    source = click.get_current_context().get_parameter_source
    found: dict[str, str | int] = {"host": host, "port": port, "metrics_port": metrics_port}
    is_own = "management_address" in properties.given and management_port not in found.values()
    if is_granian and is_own and management_host == LOOPBACK:
        found["management_port"] = management_port
    given = ParameterSource.COMMANDLINE
    return {option: value for option, value in found.items() if source(option) is not given}


def find_unread(
    config: Path | None, properties: Properties, store: Path, entries: tuple[str, ...]
) -> Iterator[str]:
    """Yields a line for each setting that no server reads."""
    found = [*find_unread_properties(str(config), properties.given)]
    found += find_unread_models(str(config), properties)
    for _, archive in read_archives(store, entries):
        found += find_unread_settings(f"model-config.yaml of {archive.path}", archive)
    yield from (f"{one.area}: {one.found}; {one.cure}" for one in found)
    yield from find_unread_variables(os.environ)
