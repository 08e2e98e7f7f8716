"""Runs `offpath serve`: the server of this host, with or without a front door before it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from offpath.archive.photographs import SAMPLE
from offpath.errors import ExpectedError
from offpath.serving.client import Client, Prediction
from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.door_tasks import DoorTasks
from offpath.serving.process.interrupts import Hangup
from offpath.serving.process.resources import awaiting_resources
from offpath.serving.process.tmp_folders import FilesRemoved, check_exist
from offpath.serving.rotation import Rotation
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.plan import ServePlan, plan_server
from offpath.serving.server.server import Server
from offpath.serving.server.server_log import LogFollower, LogLine
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.starting import find_gaps

START_POLL_S = 0.05


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


class Session:
    """A server of this host from its start to its end.

    Small tasks look after it in the meantime. Each is guarded: an unexpected exception of one is
    shown, and the others go on. An ExpectedError ends the session.

    Args:
        make_settings: returns the settings of the server to start, given its kind, or None for the
            kind to begin with; called again at each reload.
        hangup: remembers SIGHUP.
        door: settings of a front door, which replaces the server; None for a server without one.
        drain_s: seconds that requests in flight may take at the end; a door has its own.
    """

    def __init__(
        self,
        make_settings: Callable[[str | None], ServerSettings],
        view: View,
        hangup: Hangup,
        door: DoorSettings | None = None,
        drain_s: float = DoorSettings.drain_s,
    ) -> None:
        self._make_settings, self._view, self._hangup = make_settings, view, hangup
        self._drain_s = drain_s if door is None else door.drain_s
        self._follower: LogFollower | None = None
        self._failures: dict[str, str] = {}
        self._front: DoorTasks | None = None
        # Pause after each round of the tasks.
        self.watch_s = 0.5 if door is None else 0.2
        tasks = self._check_files, self._show_log, self._rotate_log
        self.tasks: Sequence[Callable[[], object]]
        if door is None:
            self.rotation = Rotation(self._plan_alone, lambda server: [], drain_s)
            self.tasks = self._check_running, *tasks, self._refuse_reload
        else:
            self._front = DoorTasks(make_settings, door, hangup, view.show_problem, self._greet)
            self.rotation = self._front.rotation
            self.tasks = *tasks, *self._front.tasks
        self.door: Door | None = None if self._front is None else self._front.door

    @property
    def server(self) -> Server:
        """The server that gets the requests."""
        return self.rotation.current

    @property
    def urls(self) -> dict[str, str]:
        if self.door is not None:
            return self.door.urls
        return {**self.server.urls, "logs": str(self.server.log_path)}

    def begin_again(self) -> Session:
        """Returns the session after this one, whose files something has removed."""
        # The door's settings have the ports, and the canaries in force.
        door = None if self.door is None else self.door.settings
        return Session(self._make_settings, self._view, self._hangup, door, self._drain_s)

    def start(self) -> None:
        """Waits until the server is READY, and announces it.

        Raises:
            ExpectedError: the server does not start, or does not serve as its archives ask.
        """
        began_s = time.monotonic()
        what = "the server" if self._front is None else "the server and nginx"
        with self._view.waiting(f"starting {what} ..."):
            starting = self.rotation.begin()
            while self.rotation.finish() is None:
                time.sleep(START_POLL_S)
            if starting.failure is not None:
                raise starting.failure
            if self._front is not None:
                self._front.open()
        self._greet(starting.statuses)
        self._view.show_ready(self.urls, starting.statuses, time.monotonic() - began_s)

    def show_sample(self) -> None:
        token = None if self.door is None else self.door.token
        headers = {"Authorization": f"Bearer {token}"} if token else None
        url, name = self.urls["inference"], self.server.plan.names[0]
        # The door's certificate need not be valid for this address.
        with Client(url, name, headers=headers, verify=False) as client:
            self._view.show_prediction(SAMPLE, client.try_predict(SAMPLE))

    def watch(self) -> None:
        """Runs the tasks until a signal or an ExpectedError ends the session."""
        needs_token = self.door is not None and self.door.settings.tokens is not None
        name = self.server.plan.names[0]
        self._view.show_usage(self.urls["inference"], name, needs_token)
        while True:
            self.look_after()
            time.sleep(self.watch_s)

    def look_after(self) -> None:
        """Runs each task once; shows its unexpected exception, unless it had the same before."""
        for task in self.tasks:
            name, failure = getattr(task, "__name__", "a task"), ""
            try:
                with awaiting_resources(self._view.show_problem):
                    task()
            except ExpectedError:
                raise
            except Exception:
                failure = f"{traceback.format_exc()}{name} failed, the rest goes on"
            if failure and failure != self._failures.get(name):
                self._view.show_problem(failure)
            self._failures[name] = failure

    def stop(self) -> None:
        """Answers the requests in flight, and ends all processes."""
        try:
            with self._view.waiting("answering requests in flight ..."):
                if not self._drain():
                    self._view.show_problem(
                        f"some requests were not answered within --drain-s {self._drain_s:g}"
                    )
        except OSError as error:
            self._view.show_problem(
                f"cannot count the requests in flight, so they are not waited for: {error}"
            )
        finally:
            self.rotation.stop()
            if self._front is not None:
                self._front.close()

    def _plan_alone(self, number: int, in_force: ServePlan | None) -> ServePlan:
        """Plans the only server of a session without a door; runs in a thread."""
        plan = plan_server(self._make_settings(None))
        plan.check_needs_no_door()
        return plan

    def _drain(self) -> bool:
        if self.door is not None:
            return self.door.drain()
        return not self.rotation.is_let_in() or self.server.drain(self._drain_s)

    def _greet(self, statuses: Iterable[ModelStatus]) -> None:
        """Says what a new server lacks, and follows its log."""
        notes = [note.text for note in self.server.plan.notes]
        for problem in (*notes, *find_gaps(statuses)):
            self._view.show_problem(problem)
        self._follower = LogFollower(self.server.log_path)

    def _check_running(self) -> None:
        if not self.server.is_running():
            raise ExpectedError(self.server.describe_end())

    def _check_files(self) -> None:
        """Raises FilesRemoved if a running server has lost a file."""
        if self.server.is_running():
            check_exist(self.server.list_sockets())
            check_exist([] if self._front is None else self._front.list_files())

    def _show_log(self) -> None:
        """Shows the errors that the server has logged."""
        for line in self._follower.read_new() if self._follower else []:
            if line.is_shown:
                self._view.show_log_line(line)
            if self._front is not None:
                self._front.readiness.note_line(line)

    def _rotate_log(self) -> None:
        self.server.rotate_log()

    def _refuse_reload(self) -> None:
        if self._hangup.take():
            self._view.show_problem(
                "SIGHUP is ignored: a reload without losing requests needs "
                "`offpath serve --front`"
            )


def serve(session: Session, view: View, *, sample: bool = False, once: bool = False) -> None:
    """Runs a session until interrupted, and another one where something has removed its files.

    Args:
        sample: send the bundled photograph to the first model and show the reply.
        once: stop as soon as the server is READY and the sample is answered.

    Raises:
        ExpectedError: nginx or the server does not start, or ends by itself.
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
