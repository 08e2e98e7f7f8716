"""Starts a server by its plan, in a thread if need be, and checks that it serves as planned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from offpath.errors import ExpectedError
from offpath.serving.granian.granian_server import GranianServer
from offpath.serving.process.resources import awaiting_resources
from offpath.serving.server.in_force import ENGINE_CURE, LOG, check_in_force, find_log_problem
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.plan import ServePlan, plan_server
from offpath.serving.server.server import Server
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.torchserve.torchserve_server import TorchServe

SERVERS: dict[str, type[Server]] = {"torchserve": TorchServe, "granian": GranianServer}


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


def stop_at_last(server: Server) -> None:
    """Stops a server, and waits where no files can be opened: its processes must not be left."""
    is_stopped = False
    while not is_stopped:
        with awaiting_resources(lambda text: None):
            server.stop()
            is_stopped = True


class Starting:
    """A server that is planned and started in a thread; the door is looked after meanwhile.

    Attributes:
        server: the server, once its processes are started.
        statuses: settings in force, once the server is READY and checked.
        failure: why the server did not start.
    """

    def __init__(self, make_plan: Callable[[], ServePlan]) -> None:
        self._make_plan = make_plan
        self.server: Server | None = None
        self.statuses: list[ModelStatus] = []
        self.failure: Exception | None = None
        self._lock, self._is_stopped = threading.Lock(), False
        # A daemon: the end of the program does not wait for it.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            plan = self._make_plan()
            with self._lock:
                if self._is_stopped:
                    return
                self.server = launch(plan)
            self.statuses = check_ready(self.server)
        except Exception as error:  # the session shows it, or ends with it
            self.failure = error
            if self.server is not None:
                stop_at_last(self.server)

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
        if self.server is not None:
            self.server.stop()
