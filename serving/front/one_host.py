"""Runs `offpath serve --front`: a front door before the server of this host."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from offpath.archive.photographs import SAMPLE
from offpath.errors import ExpectedError, WrongOption
from offpath.serving.client import Client
from offpath.serving.front.behind import (
    check_successor,
    describe_models,
    describe_upstreams,
    find_ready,
    make_upstream_settings,
)
from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import DoorSettings, read_tokens
from offpath.serving.front.nginx import find_nginx
from offpath.serving.front.reload_requests import ReloadRequests
from offpath.serving.front.rotation import Rotation, Starting
from offpath.serving.front.splits import check_splits, describe_change, judge_canaries, parse_split
from offpath.serving.process.descriptors import awaiting_descriptors
from offpath.serving.process.interrupts import Hangup, noting_hangup
from offpath.serving.process.ports import check_port_free, resolve_ports
from offpath.serving.process.tmp_folders import FilesRemoved, check_exist
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.model_store import copy_archives
from offpath.serving.server.server import Server
from offpath.serving.server.server_log import LogFollower
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.session import SERVERS, View, show_gaps

WATCH_S = 0.2
READY_CHECK_S = 1.0
START_POLL_S = 0.05
KEPT_LOGS = 3
# So many workers with a broken model within this time make /ping answer 503.
MAX_SICK = 3
SICK_S = 60.0


def serve_behind_door(
    make_settings: Callable[[str | None], ServerSettings],
    door: DoorSettings,
    view: View,
    *,
    sample: bool = False,
    once: bool = False,
) -> None:
    """Serves behind a door until interrupted.

    Args:
        make_settings: returns the settings of the server to start, given its kind, or None for the
            kind to begin with; called again at each reload.
        sample: send the bundled photograph to the first model and show the reply.
        once: stop as soon as the server is READY and the sample is answered.

    Raises:
        ExpectedError: nginx or the server does not start, or ends by itself.
    """
    # A SIGHUP that comes during the start is followed after the start.
    with noting_hangup() as hangup:
        while True:
            session = OneHostSession(make_settings, door, view)
            try:
                session.start()
                if sample:
                    session.show_sample()
                if not once:
                    session.watch(hangup)
                return
            except FilesRemoved as error:
                view.show_problem(str(error))
                door = session.door.settings  # which has the ports
            finally:
                session.stop()


class OneHostSession:
    """One run of a door before this host's server."""

    def __init__(
        self, make_settings: Callable[[str | None], ServerSettings], door: DoorSettings, view: View
    ) -> None:
        self._reloads = ReloadRequests(self._change_splits)
        self._make_settings, self._view = make_settings, view
        settings = make_settings(None)
        # TorchServe or Granian; differs from the one that runs only during a reload to the other.
        self._next_kind = settings.server
        behind = describe_upstreams(settings, door)
        self.door = Door(settle_ports(door), behind, find_nginx(), settings.log_dir)
        self.rotation = Rotation(
            self._make_next,
            self.door.switch_to,
            self.door.settings.drain_s,
            find_last_number(self.door.place.log),
        )
        self._is_reload = False
        self._next_ready_check = 0.0
        self._pool = ThreadPoolExecutor(1)
        # The server that was asked for its state, and its answer.
        self._asked: tuple[Server, Future[list[ModelStatus] | None]] | None = None
        self._follower: LogFollower | None = None
        self._failures: dict[str, str] = {}
        self._sick_ends: deque[float] = deque(maxlen=MAX_SICK)

    def start(self) -> None:
        """Starts the server, then nginx in front of it, and shows that they are READY.

        Raises:
            ExpectedError: the server or nginx does not start.
        """
        began = time.monotonic()
        with self._view.waiting("starting the server and nginx ..."):
            starting = self.rotation.begin()
            while self.rotation.finish() is None:
                time.sleep(START_POLL_S)
            if starting.failure is not None:
                raise starting.failure
            self.door.start()
            self.door.set_ready(True)
        with self._shown("only SIGHUP reloads"):
            self._reloads.open(self.door.place.run)
        self._greet(starting)
        if gap := self.door.binary.describe_gap():
            self._view.show_problem(gap)
        urls = {
            "inference": self.door.url,
            "management": f"unix:{self.door.place.run}/management.sock",
            "metrics": f"{self.door.metrics_url}/metrics",
            "logs": str(self.door.place.log),
        }
        self._view.show_ready(urls, starting.statuses or [], time.monotonic() - began)

    def show_sample(self) -> None:
        tokens = self.door.settings.tokens
        headers = {"Authorization": f"Bearer {read_tokens(tokens)[0]}"} if tokens else None
        name = self.rotation.current.model_names()[0]
        verify = self.door.settings.tls_cert is None
        with Client(self.door.url, name, headers=headers, verify=verify) as client:
            self._view.show_prediction(SAMPLE, client.try_predict(SAMPLE))

    def watch(self, hangup: Hangup) -> None:
        """Looks after door and server until a signal interrupts it or a restart fails."""
        name = self.rotation.current.model_names()[0]
        self._view.show_usage(self.door.url, name, self.door.settings.tokens is not None)
        while True:
            with awaiting_descriptors(self._view.show_problem):
                self._look_after(hangup)
            time.sleep(WATCH_S)

    def _look_after(self, hangup: Hangup) -> None:
        config = self.door.place.run / "nginx.conf"
        server = self.rotation.current
        if server.is_running():
            check_exist([config, *self._reloads.list_sockets(), *server.list_sockets()])
        self._show_errors()
        server.rotate_log()
        self.door.look_after()
        self._replace_where_dead()
        self._follow_reload(hangup)
        self.rotation.end_retired()
        self._tell_ready()
        with self._shown("the door keeps its old files"):
            self.door.refresh()

    def stop(self) -> None:
        """Closes the door, answers the requests in flight, and ends all processes."""
        try:
            with self._view.waiting("answering requests in flight ..."):
                if self.rotation.is_let_in():
                    self.door.set_ready(False)
                    time.sleep(self.door.settings.unready_s)
                if not self.door.drain():
                    self._view.show_problem(
                        "some requests were not answered within --drain-s "
                        f"{self.door.settings.drain_s}"
                    )
        finally:
            self._reloads.close()
            self.rotation.stop()
            self.door.stop()

    def _make_next(self, number: int, in_force: ServerSettings | None) -> ServerSettings:
        """Returns the settings of the next server; each server has its own folder of logs.

        Args:
            in_force: those of a server that has ended; by default the model store is read.
        """
        settings, log, run = in_force, self.door.place.log, self.door.place.run
        if settings is None:
            settings = self._make_settings(self._next_kind)
            if self._follower is not None:  # only the first start may fail for want of a spool
                settings = replace(settings, lenient=True)
            behind = describe_upstreams(settings, self.door.settings)
            check_successor(self.door.behind, behind)
            for folder in run.glob("store-*"):
                if folder != self.rotation.current.settings.model_store:
                    shutil.rmtree(folder)
            settings = copy_archives(settings, run / f"store-{number}")
        for kind in SERVERS:
            shutil.rmtree(log / f"{kind}-{number - KEPT_LOGS}", ignore_errors=True)
        folder = log / f"{settings.server}-{number}"
        return make_upstream_settings(settings, self.door.place, self.door.behind, folder)

    def _follow_reload(self, hangup: Hangup) -> None:
        """Begins a reload that was asked for, and lets in a server that has become READY."""
        is_free = not self._is_reload and self.rotation.starting is None
        if is_free and (self._reloads.accept_new() | hangup.take()):
            self._is_reload = True
            self._next_kind = self._reloads.begin() or self._next_kind
            try:
                self.rotation.begin()
            except (ExpectedError, OSError) as error:
                self._end_reload(str(error))
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
            check_splits(settings.splits, self.rotation.current.archives)
            self.door.change_settings(settings)
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
            self._greet(ended)
        elif not self.rotation.current.is_running():
            raise ended.failure
        elif self._is_reload:
            self._end_reload(str(ended.failure))

    def _end_reload(self, failure: str | None) -> None:
        self._is_reload = False
        self._reloads.end(failure)
        if failure is None:
            self._view.show_problem(f"reloaded; a new {self.rotation.current.product} serves")
        else:
            self._next_kind = self.rotation.current.settings.server
            self._view.show_problem(f"not reloaded; the old server continues: {failure}")

    def _replace_where_dead(self) -> None:
        """Starts another server after one has ended by itself.

        There is no limit to these restarts: each takes seconds, /ping tells the load balancer to
        wait, and a server that does not become READY ends the command.
        """
        server = self.rotation.current
        if server.is_running() or self.rotation.starting is not None:
            return
        self.door.set_ready(False)
        self._view.show_problem(f"{server.describe_end()}\nAnother one is starting")
        # Whatever the model store has by now: only a reload reads that.
        self.rotation.begin(server.settings)

    def _tell_ready(self) -> None:
        """Asks the server for its state, without waiting: nginx is looked after meanwhile."""
        server = self.rotation.current
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
        ready = find_ready(statuses or ())
        if statuses is not None:
            self._judge_canaries(ready)
        # Requests go to a model's first version, so a READY worker of another is not enough.
        versions = {name: one.model_version for name, one in reversed(server.archives)}
        self.door.set_ready(versions.items() <= ready and not self._is_sick())
        self._count_workers(statuses or ())
        self._next_ready_check = time.monotonic() + READY_CHECK_S

    def _count_workers(self, statuses: Sequence[ModelStatus]) -> None:
        """Counts the workers for /metrics, unless the server does."""
        server = self.rotation.current
        if server.worker_counts is not None:
            versions = ((name, archive.model_version) for name, archive in server.archives)
            server.worker_counts.note(versions, statuses)
        self.door.workers = server.worker_counts.format() if server.worker_counts else []

    def _judge_canaries(self, ready: set[tuple[str, str]]) -> None:
        """Suspends canaries that answer nothing, and lets those in again that can answer."""
        settings = self.door.settings
        judged = judge_canaries(settings.canary, ready, self.door.replies.only_fails)
        if judged == settings.canary:
            return
        with self._shown("the canaries stay as they are"):
            self.door.change_settings(replace(settings, canary=judged))
            for change in filter(None, map(describe_change, settings.canary, judged)):
                self._view.show_problem(change)

    def _is_sick(self) -> bool:
        """Tells whether workers end again and again with a broken model.

        Other deaths do not count, because a client's image could cause them.
        """
        ends = self._sick_ends
        return len(ends) == MAX_SICK and time.monotonic() - ends[0] < SICK_S

    def _greet(self, starting: Starting) -> None:
        """Follows the log of a server that has just been let in."""
        server = starting.server
        show_gaps(server, starting.statuses or [], self._view)
        self._follower = LogFollower(server.log_path)

    def _show_errors(self) -> None:
        # Those of shadows answer nobody, and a canary that fails is suspended.
        tried = [f"{s.model}_{s.version}" for s in self.door.settings.splits]
        for line in self._follower.read_new() if self._follower else []:
            if line.is_shown:
                self._view.show_log_line(line)
            if line.is_of_sick_worker and line.model not in tried:
                self._sick_ends.append(time.monotonic())
                if self._is_sick():
                    self._view.show_problem(
                        f"{MAX_SICK} workers ended with a broken model within {SICK_S:g} s; "
                        "/ping answers 503 until that has stopped"
                    )

    @contextlib.contextmanager
    def _shown(self, consequence: str) -> Iterator[None]:
        """Shows a failure with its consequence, once until there is another or none."""
        failure = ""
        try:
            yield
        except ExpectedError as error:
            failure = f"{error}; {consequence}"
            if failure != self._failures.get(consequence):
                self._view.show_problem(failure)
        self._failures[consequence] = failure


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
