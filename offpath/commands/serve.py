"""`offpath serve`: starts TorchServe or Granian and checks its settings before it is announced."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from offpath.archive.mar_file import read_archives
from offpath.commands.declared_options import takes_options
from offpath.commands.serve_options import (
    DoorOptions,
    ServeOptions,
    check_host,
    choose_log_dir,
    make_door_settings,
)
from offpath.commands.serve_view import ServeView
from offpath.commands.variables import find_unread_variables
from offpath.errors import WrongOption
from offpath.serving.check.spelling import (
    find_unread_models,
    find_unread_properties,
    find_unread_settings,
)
from offpath.serving.front.door_settings import DoorSettings, read_tokens
from offpath.serving.front.upstreams import plan_upstreams
from offpath.serving.process.interrupts import Terminated, noting_hangup, stopping_on_signals
from offpath.serving.process.tmp_folders import tmp_dir
from offpath.serving.server.model_store import find_models
from offpath.serving.server.plan import plan_server
from offpath.serving.server.properties import Properties, load_properties
from offpath.serving.server.server_settings import LOOPBACK, ServerSettings
from offpath.serving.session import Session, serve

BY_ADDRESS = (
    "--canary tells clients apart by their address, and behind a proxy or a balancer all clients "
    "have the same, so all get the canary or none; add --canary-by HEADER, such as x-user-id"
)


@click.command(name="serve")
@takes_options
def command(options: ServeOptions, door_options: DoorOptions) -> None:
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
    view = ServeView(options.as_json)
    settings = choose_settings(options)
    door = make_door_settings(options, door_options, settings)
    if door is None and settings.server == "granian":  # a door would have checked them
        allowed = DoorSettings(allow_host=door_options.allow_host).allow_host
        settings = replace(settings, allow_host=allowed)
    settings = replace(settings, busy_status=door_options.busy_status)
    check_host(settings.host, door, options.behind_proxy)
    if door is not None and door.canary and not door.canary_by:
        if options.behind_proxy:
            raise WrongOption(BY_ADDRESS)
        view.show_problem(BY_ADDRESS)
    if options.behind_proxy:
        view.show_problem(
            f"--behind-proxy: {settings.host} answers everybody, without TLS and tokens; make sure "
            "that only the proxy can reach it"
        )
    try:
        with tmp_dir() as links, stopping_on_signals(), noting_hangup() as hangup:
            find = functools.partial(find_settings, options, settings, links, view)
            if options.dry_run:
                view.show_plan(describe_plan(find(), door))
                return
            session = Session(find, view, hangup, door, options.drain_s)
            serve(session, view, sample=options.sample, once=options.once)
    except Terminated:
        click.echo("stopped", err=True)


def choose_settings(options: ServeOptions) -> ServerSettings:
    """Returns settings without archives; an option wins over the same address of --config.

    Of metrics_address the port is taken, because --host and --metrics-host decide who can read
    /metrics. Management stays a socket, unless only this machine can reach Granian's at a port of
    its own.
    """
    properties = load_properties(options.config)
    host, port = properties.inference_address
    _, metrics_port = properties.metrics_address
    management_host, management_port = properties.management_address
    has_management_port = (
        options.server == "granian"
        and "management_address" in properties.given
        and management_host == LOOPBACK
        and management_port not in (port, metrics_port)
    )

    def is_given(option: str) -> bool:
        source = click.get_current_context().get_parameter_source(option)
        return options.config is None or source is ParameterSource.COMMANDLINE

    port = options.port if is_given("port") else port
    return ServerSettings(
        options.model_store,
        models=(),
        config=options.config,
        server=options.server,
        host=options.host if is_given("host") else host,
        inference_port=port,
        management_port=management_port if has_management_port else None,
        metrics_port=options.metrics_port if is_given("metrics_port") else metrics_port,
        grpc_port=options.grpc_port,
        allow_cpu=options.allow_cpu,
        lenient=options.lenient,
        verbose=options.verbose,
        log_dir=choose_log_dir(options.log_dir, port),
    )


def find_settings(
    options: ServeOptions,
    settings: ServerSettings,
    links: Path,
    view: ServeView,
    kind: str | None = None,
) -> ServerSettings:
    """Returns the settings with the archives that are there now, for a server of that kind."""
    settings = replace(settings, server=kind or settings.server)
    if settings.server == "granian" and settings.grpc_port is not None:
        raise WrongOption("--grpc-port needs --server torchserve")
    loaded = load_properties(options.config)
    wanted = options.models or loaded.list_wanted()
    store, entries = find_models(options.model_store, wanted, links)
    for problem in find_unread(options.config, loaded, store, entries):
        if not options.lenient:
            raise WrongOption(f"{problem}; --lenient starts all the same")
        view.show_problem(problem)
    return replace(settings, model_store=store, models=entries)


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


def find_unread(
    config: Path | None, properties: Properties, store: Path, entries: tuple[str, ...]
) -> Iterator[str]:
    """Yields a line for each setting that no server reads."""
    found = [*find_unread_properties(str(config), properties.given)]
    found += find_unread_models(str(config), properties)
    for _, archive in read_archives(store, entries):
        found += find_unread_settings(f"model-config.yaml of {archive.path}", archive)
    yield from (one.text for one in found)
    yield from find_unread_variables(os.environ)
