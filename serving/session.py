"""Runs `offpath serve`: start, check, warm up, announce, look after, drain."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from offpath.archive.photographs import SAMPLE
from offpath.errors import ExpectedError
from offpath.serving.client import Client, Prediction
from offpath.serving.granian.granian_server import GranianServer
from offpath.serving.process.descriptors import awaiting_descriptors
from offpath.serving.process.interrupts import Hangup
from offpath.serving.process.tmp_folders import FilesRemoved, check_exist
from offpath.serving.server.in_force import ENGINE_CURE, LOG, check_in_force, find_log_problem
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.plan import ServePlan, plan_server
from offpath.serving.server.server import Server
from offpath.serving.server.server_log import LogFollower, LogLine
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


class Session(ABC):
    """A server of ours from its start to its end. Small tasks look after it in the meantime.

    Attributes:
        tasks: called one after the other, again and again. An unexpected exception of one is shown,
            and the others go on; an ExpectedError ends the session.
        watch_s: pause after each round of the tasks.
    """

    tasks: Sequence[Callable[[], object]]
    watch_s: float

    def __init__(self, view: View) -> None:
        self._view = view
        self._follower: LogFollower | None = None
        self._failures: dict[str, str] = {}

    @property
    @abstractmethod
    def server(self) -> Server:
        """The server that gets the requests."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Base URL of predictions."""

    @property
    def token(self) -> str | None:
        """A bearer token that predictions need."""
        return None

    @abstractmethod
    def start(self) -> None:
        """Waits until the server is READY and announces it.

        Raises:
            ExpectedError: the server does not start, or does not serve as its archives ask.
        """

    @abstractmethod
    def stop(self) -> None:
        """Answers the requests in flight, and ends all processes."""

    @abstractmethod
    def begin_again(self) -> Session:
        """Returns the session after this one, whose files something has removed."""

    def show_sample(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else None
        # The certificate need not be valid for this address.
        with Client(self.url, self.server.plan.names[0], headers=headers, verify=False) as client:
            self._view.show_prediction(SAMPLE, client.try_predict(SAMPLE))

    def watch(self) -> None:
        """Runs the tasks until a signal or an ExpectedError ends the session."""
        self._view.show_usage(self.url, self.server.plan.names[0], self.token is not None)
        while True:
            for task in self.tasks:
                self.run_guarded(task)
            time.sleep(self.watch_s)

    def run_guarded(self, task: Callable[[], object]) -> None:
        """Runs a task; shows an unexpected exception once, until there is another or none."""
        name = getattr(task, "__name__", "task")
        try:
            with awaiting_descriptors(self._view.show_problem):
                task()
        except ExpectedError:
            raise
        except Exception:
            self._show_once(name, f"{traceback.format_exc()}{name} failed, the rest goes on")
        else:
            self._failures.pop(name, None)

    def _show_once(self, about: str, failure: str) -> None:
        """Shows a failure, unless it is the last one that was shown about something."""
        if failure != self._failures.get(about):
            self._view.show_problem(failure)
        self._failures[about] = failure

    def _greet(self, statuses: Iterable[ModelStatus]) -> None:
        """Says what a new server lacks, and follows its log."""
        for problem in (*self.server.plan.notes, *find_gaps(statuses)):
            self._view.show_problem(problem)
        self._follower = LogFollower(self.server.log_path)

    def _show_log(self) -> None:
        """Shows the errors that the server has logged."""
        for line in self._follower.read_new() if self._follower else []:
            if line.is_shown:
                self._view.show_log_line(line)
            self._note_line(line)

    def _note_line(self, line: LogLine) -> None:
        """Takes each new line of the log."""

    def _rotate_log(self) -> None:
        self.server.rotate_log()


class DirectSession(Session):
    """A server without a front door.

    Args:
        drain_s: seconds that requests in flight may take at the end.
    """

    watch_s = 0.5

    def __init__(
        self, settings: ServerSettings, view: View, drain_s: float, hangup: Hangup
    ) -> None:
        super().__init__(view)
        self._settings, self._drain_s, self._hangup = settings, drain_s, hangup
        self._began_s = time.monotonic()
        self._is_ready = False
        self._server = start_server(settings)
        self.tasks = self._check_running, self._show_log, self._rotate_log, self._refuse_reload

    @property
    def server(self) -> Server:
        return self._server

    @property
    def url(self) -> str:
        return self._server.inference_url

    def start(self) -> None:
        with self._view.waiting(f"starting {self._server.product} ..."):
            statuses = check_ready(self._server)
        self._is_ready = True
        self._greet(statuses)
        urls = {**self._server.urls, "logs": str(self._server.log_path)}
        self._view.show_ready(urls, statuses, time.monotonic() - self._began_s)

    def begin_again(self) -> Session:
        return DirectSession(self._settings, self._view, self._drain_s, self._hangup)

    def stop(self) -> None:
        try:
            if self._is_ready:
                self._drain()
        finally:
            self._server.stop()

    def _check_running(self) -> None:
        """Raises ExpectedError if the server has ended, or lost its files."""
        if not self._server.is_running():
            raise ExpectedError(self._server.describe_end())
        check_exist(self._server.list_sockets())

    def _refuse_reload(self) -> None:
        if self._hangup.take():
            self._view.show_problem(
                "SIGHUP is ignored: a reload without losing requests needs "
                "`offpath serve --front`"
            )

    def _drain(self) -> None:
        try:
            with self._view.waiting("answering requests in flight ..."):
                is_done = self._server.drain(self._drain_s)
        except OSError as error:
            self._view.show_problem(
                f"cannot count the requests in flight, so they are not waited for: {error}"
            )
            return
        if not is_done:
            self._view.show_problem(
                f"some requests were not answered within --drain-s {self._drain_s:g}"
            )


def serve(session: Session, view: View, *, sample: bool = False, once: bool = False) -> None:
    """Runs a session until interrupted, and another one where something has removed its files.

    Args:
        sample: send the bundled photograph to the first model and show the reply.
        once: stop as soon as the server is READY and the sample is answered.

    Raises:
        ExpectedError: the server does not start, or ends by itself.
    """
    while True:
        try:
            session.start()
            if sample:
                session.show_sample()
            if not once:
                session.watch()
            return
        except FilesRemoved as error:
            view.show_problem(str(error))
        finally:
            session.stop()
        session = session.begin_again()
