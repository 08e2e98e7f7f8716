"""What the experiments on servers shared before `on_servers.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.target import ServerUnderTest
from offpath.profiling.load.window import Observer

# Of a start with the check of the answers, for the estimate.
START_S = 10.0


def describe_server(server: ServerUnderTest) -> dict[str, Any]:
    """How a server is set up and what its clients send."""
    return {**server.settings, "content": server.call.content}


def find_runnable(
    servers: Sequence[ServerUnderTest], observer: Observer
) -> tuple[list[ServerUnderTest], dict[str, str]]:
    """The servers that can run here, and why the others cannot.

    Raises:
        ExpectedError: none can.
    """
    not_run = {}
    for server in servers:
        reason = server.why_not()
        if reason is not None:
            not_run[server.name] = reason
            observer.on_failure(server.name, reason)
    runnable = [server for server in servers if server.name not in not_run]
    if not runnable:
        raise ExpectedError(
            "none of the servers can run here: "
            + "; ".join(f"{name}: {reason}" for name, reason in not_run.items())
        )
    return runnable, not_run


def prepare_servers(
    servers: Sequence[ServerUnderTest], folder: Path, observer: Observer
) -> tuple[list[ServerUnderTest], dict[str, str]]:
    """Builds what the servers need; the built ones, and why others could not be built."""
    failed = {}
    for server in servers:
        observer.on_step(f"{server.name}: build")
        try:
            server.prepare(folder / server.name)
        except ExpectedError as error:
            failed[server.name] = str(error)
            observer.on_failure(server.name, str(error))
    return [server for server in servers if server.name not in failed], failed
