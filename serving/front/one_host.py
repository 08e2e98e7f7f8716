"""Runs `offpath serve`: the server of this host, with or without a front door before it."""

from __future__ import annotations

import shutil
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from offpath.archive.photographs import SAMPLE
from offpath.errors import ExpectedError, WrongOption
from offpath.serving.client import Client
from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import DoorSettings, read_tokens
from offpath.serving.front.nginx import find_nginx
from offpath.serving.front.reload_requests import ReloadRequests
from offpath.serving.front.rotation import Rotation, Starting
from offpath.serving.front.splits import check_splits, describe_change, judge_canaries, parse_split
from offpath.serving.front.upstreams import (
    check_successor,
    describe_models,
    plan_upstreams,
    put_behind_door,
)
from offpath.serving.process.descriptors import awaiting_descriptors
from offpath.serving.process.interrupts import Hangup
from offpath.serving.process.ports import check_port_free, resolve_ports
from offpath.serving.process.tmp_folders import FilesRemoved, check_exist
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.model_store import copy_archives
from offpath.serving.server.plan import ServePlan, plan_server
from offpath.serving.server.server import Server
from offpath.serving.server.server_log import LogFollower, LogLine
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.session import SERVERS, View, find_gaps

READY_CHECK_S = 1.0
START_POLL_S = 0.05
KEPT_LOGS = 3
# So many workers with a broken model within this time make /ping answer 503.
MAX_SICK = 3
SICK_S = 60.0


class Session:
    """A server of this host from its start to its end.

    Small tasks look after it in the meantime. Each is guarded: an unexpected exception of one is
    shown, and the others go on. An ExpectedError ends the session.

    Args:
        make_settings: returns the settings of the server to start, given its kind, or None for the
            kind to begin with; called again at each reload.
        hangup: remembers SIGHUP.
        drain_s: seconds that requests in flight may take at the end.
    """

    # Pause after each round of the tasks.
    watch_s = 0.5
    what = "the server"

    def __init__(
        self,
        make_settings: Callable[[str | None], ServerSettings],
        view: View,
        hangup: Hangup,
        drain_s: float,
    ) -> None:
        self._make_settings, self._view = make_settings, view
        self._hangup, self._drain_s = hangup, drain_s
        self._follower: LogFollower | None = None
        self._failures: dict[str, str] = {}
        self.rotation = Rotation(self._plan_next, self._switch_to, drain_s)
        self.tasks: Sequence[Callable[[], object]] = (
            *(self._check_running, self._check_files, self._show_log, self._rotate_log),
            self._refuse_reload,
        )

    @property
    def server(self) -> Server:
        """The server that gets the requests."""
        return self.rotation.current

    @property
    def token(self) -> str | None:
        """A bearer token, if predictions need one."""
        return None

    @property
    def urls(self) -> dict[str, str]:
        return {**self.server.urls, "logs": str(self.server.log_path)}

    def begin_again(self) -> Session:
        """Returns the session after this one, whose files something has removed."""
        return Session(self._make_settings, self._view, self._hangup, self._drain_s)

    def start(self) -> None:
        """Waits until the server is READY, and announces it.

        Raises:
            ExpectedError: the server does not start, or does not serve as its archives ask.
        """
        began_s = time.monotonic()
        with self._view.waiting(f"starting {self.what} ..."):
            starting = self.rotation.begin()
            while self.rotation.finish() is None:
                time.sleep(START_POLL_S)
            if starting.failure is not None:
                raise starting.failure
            self._open()
        self._greet(starting.statuses)
        self._view.show_ready(self.urls, starting.statuses, time.monotonic() - began_s)

    def show_sample(self) -> None:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else None
        url, name = self.urls["inference"], self.server.plan.names[0]
        # The door's certificate need not be valid for this address.
        with Client(url, name, headers=headers, verify=False) as client:
            self._view.show_prediction(SAMPLE, client.try_predict(SAMPLE))

    def watch(self) -> None:
        """Runs the tasks until a signal or an ExpectedError ends the session."""
        names = self.server.plan.names
        self._view.show_usage(self.urls["inference"], names[0], self.token is not None)
        while True:
            self.look_after()
            time.sleep(self.watch_s)

    def look_after(self) -> None:
        """Runs each task once; shows its unexpected exception, unless it had the same before."""
        for task in self.tasks:
            name, failure = getattr(task, "__name__", "a task"), ""
            try:
                with awaiting_descriptors(self._view.show_problem):
                    task()
            except ExpectedError:
                raise
            except Exception:
                failure = f"{traceback.format_exc()}{name} failed, the rest goes on"
            self._show_once(name, failure)

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
            self._close()

    def _plan_next(self, number: int, in_force: ServePlan | None) -> ServePlan:
        """Plans the next server; runs in a thread.

        Args:
            number: of servers until then.
            in_force: the plan of a server that has ended; by default the model store is read.
        """
        plan = plan_server(self._make_settings(None))
        plan.check_needs_no_door()
        return plan

    def _switch_to(self, server: Server) -> list[int]:
        """Sends new requests to a server (`Door.switch_to`)."""
        return []

    def _open(self) -> None:
        """Lets clients in."""

    def _drain(self) -> bool:
        return not self.rotation.is_let_in() or self.server.drain(self._drain_s)

    def _close(self) -> None:
        self.rotation.stop()

    def _show_once(self, about: str, failure: str) -> None:
        """Shows what has failed, if anything, unless it was shown the last time."""
        if failure and failure != self._failures.get(about):
            self._view.show_problem(failure)
        self._failures[about] = failure

    def _greet(self, statuses: Iterable[ModelStatus]) -> None:
        """Says what a new server lacks, and follows its log."""
        for problem in (*self.server.plan.notes, *find_gaps(statuses)):
            self._view.show_problem(problem)
        self._follower = LogFollower(self.server.log_path)

    def _check_running(self) -> None:
        if not self.server.is_running():
            raise ExpectedError(self.server.describe_end())

    def _check_files(self) -> None:
        """Raises FilesRemoved if a running server has lost a file."""
        if self.server.is_running():
            check_exist(self._list_files())

    def _list_files(self) -> list[Path]:
        return self.server.list_sockets()

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

    def _refuse_reload(self) -> None:
        if self._hangup.take():
            self._view.show_problem(
                "SIGHUP is ignored: a reload without losing requests needs "
                "`offpath serve --front`"
            )


class DoorSession(Session):
    """A front door before the server of this host, which it replaces."""

    watch_s = 0.2
    what = "the server and nginx"

    def __init__(
        self,
        make_settings: Callable[[str | None], ServerSettings],
        door: DoorSettings,
        view: View,
        hangup: Hangup,
    ) -> None:
        super().__init__(make_settings, view, hangup, door.drain_s)
        self._reloads = ReloadRequests(self._change_splits)
        settings = make_settings(None)
        # TorchServe or Granian; differs from the one that runs only during a reload to the other.
        self._next_kind = settings.server
        upstreams = plan_upstreams(plan_server(settings), door)
        self.door = Door(settle_ports(door), upstreams, find_nginx(), settings.log_dir)
        self.rotation.count = find_last_number(self.door.place.log)
        self._is_reload = False
        self._next_ready_check = 0.0
        self._pool = ThreadPoolExecutor(1)
        # The server that was asked for its state, and its answer.
        self._asked: tuple[Server, Future[list[ModelStatus] | None]] | None = None
        self._sick_ends: deque[float] = deque(maxlen=MAX_SICK)
        self.tasks = (
            *(self._check_files, self._show_log, self._rotate_log, self.door.look_after),
            *(self._replace_where_dead, self._follow_reload, self.rotation.end_retired),
            *(self._tell_ready, self._refresh_door),
        )

    @property
    def token(self) -> str | None:
        tokens = self.door.settings.tokens
        return read_tokens(tokens)[0] if tokens else None

    @property
    def urls(self) -> dict[str, str]:
        return {
            "inference": self.door.url,
            "management": f"unix:{self.door.place.run}/management.sock",
            "metrics": f"{self.door.metrics_url}/metrics",
            "logs": str(self.door.place.log),
        }

    def begin_again(self) -> Session:
        # The door's settings have the ports by now.
        return DoorSession(self._make_settings, self.door.settings, self._view, self._hangup)

    def _switch_to(self, server: Server) -> list[int]:
        return self.door.switch_to(server)

    def _open(self) -> None:
        self.door.start()
        self.door.set_ready(True)
        try:
            self._reloads.open(self.door.place.run)
        except ExpectedError as error:
            self._view.show_problem(f"{error}; only SIGHUP reloads")
        if gap := self.door.binary.describe_gap():
            self._view.show_problem(gap)

    def _drain(self) -> bool:
        if self.rotation.is_let_in():
            self.door.set_ready(False)
            time.sleep(self.door.settings.unready_s)
        return self.door.drain()

    def _close(self) -> None:
        self._reloads.close()
        self.rotation.stop()
        self.door.stop()

    def _list_files(self) -> list[Path]:
        config = self.door.place.run / "nginx.conf"
        return [config, *self._reloads.list_sockets(), *self.server.list_sockets()]

    def _refresh_door(self) -> None:
        try:
            self.door.refresh()
        except ExpectedError as error:
            self._view.show_problem(f"{error}; the door keeps its old files")

    def _plan_next(self, number: int, in_force: ServePlan | None) -> ServePlan:
        # Each server has its own folder of logs.
        plan, log, run = in_force, self.door.place.log, self.door.place.run
        if plan is None:
            settings = self._make_settings(self._next_kind)
            if self.rotation.is_let_in():  # only the first start may fail for want of a spool
                settings = replace(settings, lenient=True)
            new = plan_upstreams(plan_server(settings), self.door.settings)
            check_successor(self.door.upstreams, new)
            for folder in run.glob("store-*"):
                if folder != self.server.settings.model_store:
                    shutil.rmtree(folder)
            plan = plan_server(copy_archives(settings, run / f"store-{number}"))
        for kind in SERVERS:
            shutil.rmtree(log / f"{kind}-{number - KEPT_LOGS}", ignore_errors=True)
        folder = log / f"{plan.settings.server}-{number}"
        return put_behind_door(plan, self.door.place, self.door.upstreams, folder)

    def _follow_reload(self) -> None:
        """Begins a reload that was asked for, and lets in a server that has become READY."""
        is_free = not self._is_reload and self.rotation.starting is None
        if is_free and (self._reloads.accept_new() | self._hangup.take()):
            self._is_reload = True
            self._next_kind = self._reloads.begin() or self._next_kind
            self.rotation.begin()
        ended = self.rotation.finish()
        if ended is not None:
            self._follow_start(ended)
        elif self._is_reload and self.rotation.starting is None:
            if self.rotation.has_turned():
                self._end_reload(None)

    def _change_splits(
        self, canary: list[str], shadow: list[str], stop: list[str]
    ) -> dict[str, list[str]]:
        """Changes canaries and shadows as `offpath canary` asks.

        Returns:
            those in force then, those that have ended, because a model has either a canary or a
            shadow, and the canaries that get no requests at present.
        """
        before = self.door.settings
        settings = before.change_splits(
            list(map(parse_split, canary)), list(map(parse_split, shadow)), stop
        )
        if settings != before:
            check_splits(settings.splits, self.server.plan.models)
            self.door.change(settings)
            self.door.replies.forgive()
        return {
            "canary": list(map(str, settings.canary)),
            "shadow": list(map(str, settings.shadow)),
            "ended": before.list_ended(settings),
            "suspended": [
                f"{one}: {one.suspended.value}" for one in settings.canary if one.suspended
            ],
        }

    def _follow_start(self, ended: Starting) -> None:
        if ended.failure is None:
            self._greet(ended.statuses)
        elif not self.server.is_running():
            raise ExpectedError(str(ended.failure)) from ended.failure
        elif self._is_reload:
            self._end_reload(str(ended.failure))

    def _end_reload(self, failure: str | None) -> None:
        self._is_reload = False
        self._reloads.end(failure)
        if failure is None:
            self._view.show_problem(f"reloaded; a new {self.server.product} serves")
        else:
            self._next_kind = self.server.settings.server
            self._view.show_problem(f"not reloaded; the old server continues: {failure}")

    def _replace_where_dead(self) -> None:
        """Starts another server after one has ended by itself.

        There is no limit to these restarts: each takes seconds, /ping tells the load balancer to
        wait, and a server that does not become READY ends the command.
        """
        server = self.server
        if server.is_running() or self.rotation.starting is not None:
            return
        self.door.set_ready(False)
        self._view.show_problem(f"{server.describe_end()}\nAnother one is starting")
        # Whatever the model store has by now: only a reload reads that.
        self.rotation.begin(server.plan)

    def _tell_ready(self) -> None:
        """Asks the server for its state, without waiting: nginx is looked after meanwhile."""
        server = self.server
        if self._asked is None:
            if time.monotonic() >= self._next_ready_check:
                self._asked = server, self._pool.submit(describe_models, server)
            return
        asked, answer = self._asked
        if not answer.done():
            return
        self._asked = None
        if asked is not server:
            return
        statuses = answer.result() if server.is_running() else None
        ready = {
            (one.model_name, one.model_version) for one in statuses or () if one.ready_workers > 0
        }
        if statuses is not None:
            self._judge_canaries(ready)
        # Requests go to a model's first version, so a READY worker of another is not enough.
        versions = {one.name: one.version for one in reversed(server.plan.models)}
        self.door.set_ready(versions.items() <= ready and not self._is_sick())
        if server.worker_counts is not None:  # otherwise the server counts them
            names = ((one.name, one.version) for one in server.plan.models)
            server.worker_counts.note(names, statuses or ())
        self.door.workers = server.worker_counts.format() if server.worker_counts else []
        self._next_ready_check = time.monotonic() + READY_CHECK_S

    def _judge_canaries(self, ready: set[tuple[str, str]]) -> None:
        """Suspends canaries that answer nothing, and lets those in again that can answer."""
        settings = self.door.settings
        judged = judge_canaries(settings.canary, ready, self.door.replies.only_fails)
        if judged == settings.canary:
            return
        try:
            self.door.change(replace(settings, canary=judged))
        except ExpectedError as error:
            self._show_once("canaries", f"{error}; the canaries stay as they are")
            return
        for change in filter(None, map(describe_change, settings.canary, judged)):
            self._view.show_problem(change)

    def _is_sick(self) -> bool:
        """Tells whether workers end again and again with a broken model.

        Other deaths do not count, because a client's image could cause them.
        """
        ends = self._sick_ends
        return len(ends) == MAX_SICK and time.monotonic() - ends[0] < SICK_S

    def _note_line(self, line: LogLine) -> None:
        # Those of shadows answer nobody, and a canary that fails is suspended.
        tried = [f"{s.model}_{s.version}" for s in self.door.settings.splits]
        if line.is_of_sick_worker and line.model not in tried:
            self._sick_ends.append(time.monotonic())
            if self._is_sick():
                self._view.show_problem(
                    f"{MAX_SICK} workers ended with a broken model within {SICK_S:g} s; "
                    "/ping answers 503 until that has stopped"
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


def settle_ports(door: DoorSettings) -> DoorSettings:
    """Replaces each port 0 by a free one.

    Raises:
        ExpectedError: a port that was asked for is taken, or asked for twice.
    """
    if len({door.port, *door.also_port}) <= len(door.also_port):
        raise WrongOption("--also-port: expected ports that differ from each other and from --port")
    for port, option in ((door.port, "--port"), *((one, "--also-port") for one in door.also_port)):
        if port and ":" not in door.host:
            check_port_free(door.host, port, option)
    if door.metrics_port:
        check_port_free(door.metrics_host, door.metrics_port, "--metrics-port")
    if ":" in door.host:
        if not door.port:
            raise ExpectedError("an IPv6 --host needs a --port other than 0")
        (metrics,) = resolve_ports(door.metrics_host, [door.metrics_port])
        return replace(door, metrics_port=metrics)
    port, metrics = resolve_ports(door.host, [door.port, door.metrics_port])
    return replace(door, port=port, metrics_port=metrics)


def find_last_number(log: Path) -> int:
    """Returns the highest number of a server's folder of logs, 0 without one."""
    ends = (path.name.rpartition("-")[2] for path in log.glob("*-*") if path.is_dir())
    return max((int(end) for end in ends if end.isdecimal()), default=0)
