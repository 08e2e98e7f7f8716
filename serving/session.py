"""Launches a server by its plan and checks that it serves as planned; a view of what happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from offpath.errors import ExpectedError
from offpath.serving.client import Prediction
from offpath.serving.granian.granian_server import GranianServer
from offpath.serving.server.in_force import ENGINE_CURE, LOG, check_in_force, find_log_problem
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.plan import ServePlan, plan_server
from offpath.serving.server.server import Server
from offpath.serving.server.server_log import LogLine
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.torchserve.torchserve_server import TorchServe

SERVERS: dict[str, type[Server]] = {"torchserve": TorchServe, "granian": GranianServer}


class View:
    """Receives the events of a serving session and ignores them; a subclass shows them."""

    def waiting(self, text: str) -> AbstractContextManager[Any]:
        """Returns a context that is open while something takes long."""
        return nullcontext()

    def show_ready(
        self,
        urls: Mapping[str, str],
        statuses: Sequence[ModelStatus],
        ready_s: float,
    ) -> None:
        """Shows the settings in force, `ready_s` seconds after the start."""

    def show_prediction(self, photograph: Path, prediction: Prediction) -> None:
        """Shows the answer to the sample."""

    def show_usage(self, inference_url: str, model_name: str, needs_token: bool = False) -> None:
        """Shows how to ask for a prediction and how to stop."""

    def show_log_line(self, line: LogLine) -> None:
        """Shows an error that the server has logged."""

    def show_problem(self, text: str) -> None:
        """Shows what has happened to the server, and the consequence."""


def launch(plan: ServePlan) -> Server:
    """Starts the processes of a server, and returns at once."""
    if plan.settings.server not in SERVERS:
        raise ExpectedError(f"server {plan.settings.server!r} is none of {', '.join(SERVERS)}")
    return SERVERS[plan.settings.server](plan)


def start_server(settings: ServerSettings) -> Server:
    """Plans and launches a server."""
    return launch(plan_server(settings))


def check_ready(server: Server) -> list[ModelStatus]:
    """Waits for a server, checks and returns each model's settings in force, and warms it up.

    Raises:
        ExpectedError: the start or the check fails.
    """
    server.wait_until_ready()
    settings = server.settings
    with server.management() as management:
        models = server.plan.models
        statuses = check_in_force(models, management, settings.allow_cpu, settings.lenient)
    server.warm_up(statuses)
    return statuses


def find_gaps(statuses: Iterable[ModelStatus]) -> list[str]:
    """Returns which models run without their engine or their log."""
    found = []
    for status in statuses:
        for problem in find_log_problem(status):
            found.append(f"{problem.area}: {LOG} {problem.found}; {problem.cure}")
        for reason in status.described.get("engines_lost", []):
            found.append(
                f"{status.model_name} {status.model_version} runs {status.engine}: {reason};"
                f" {ENGINE_CURE}"
            )
    return found
