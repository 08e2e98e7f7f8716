"""The servers of one door: one serves, one may be starting, old ones finish their requests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import psutil

from offpath.serving.front.nginx_config import KEEPALIVE_S
from offpath.serving.front.upstreams import count_connections
from offpath.serving.process.descriptors import awaiting_descriptors
from offpath.serving.server.management import ModelStatus
from offpath.serving.server.plan import ServePlan
from offpath.serving.server.server import Server
from offpath.serving.session import check_ready, launch

# After this many seconds, nginx passes no request to an old server. It keeps a connection only if a
# request on it ended within KEEPALIVE_S of its start, and then for KEEPALIVE_S.
TURNED_S = 2 * KEEPALIVE_S + 0.5
# nginx may have looked up the old link just before it changed, and connect a moment later.
SETTLE_S = 0.5


def stop_at_last(server: Server) -> None:
    """Stops a server, and waits where no files can be opened: its processes must not be left."""
    is_stopped = False
    while not is_stopped:
        with awaiting_descriptors(lambda text: None):
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


@dataclass
class Retired:
    """A server to which nginx makes no new connections, except processes that are ending.

    Attributes:
        server: the old server.
        since: time by `time.monotonic` of the last new connection from the others.
        drain_s: seconds after which it ends even with requests in flight.
        old_nginx: process ids of nginx's workers that still have the old configuration.
        ending: the thread that stops it.
    """

    server: Server
    since: float
    drain_s: float
    old_nginx: list[int]
    ending: threading.Thread | None = None

    def end_if_done(self) -> bool:
        """Stops the server once it has answered everything; returns True when it has ended."""
        if self.ending is None and self._may_end():
            self.ending = threading.Thread(target=stop_at_last, args=(self.server,), daemon=True)
            self.ending.start()
        return self.ending is not None and not self.ending.is_alive()

    def may_get_requests(self) -> bool:
        """Tells whether nginx may pass new requests over a connection that it has kept."""
        return not self._is_left() and time.monotonic() < self.since + TURNED_S

    def _is_left(self) -> bool:
        if not self.server.is_running():
            return True
        # An upload that began before the reload reaches this server when it ends.
        if any(map(psutil.pid_exists, self.old_nginx)):
            return False
        return count_connections(*self.server.links().values()) == 0

    def _may_end(self) -> bool:
        age_s = time.monotonic() - self.since
        return age_s > self.drain_s or (age_s > SETTLE_S and self._is_left())


class Rotation:
    """Replaces the server behind a door.

    Args:
        make_plan: returns the plan of the next server, given its number, and that of a server that
            is to start again.
        switch_to: sends new requests to a server, or raises and changes nothing (`Door.switch_to`).
        drain_s: seconds that an old server may take to answer its requests.

    Attributes:
        count: number of the last server.
        starting: the server that is being started, if any.
    """

    def __init__(
        self,
        make_plan: Callable[[int, ServePlan | None], ServePlan],
        switch_to: Callable[[Server], list[int]],
        drain_s: float,
    ) -> None:
        self._make_plan, self._switch_to = make_plan, switch_to
        self._drain_s = drain_s
        self.count = 0
        self._current: Server | None = None
        self._retired: list[Retired] = []
        self.starting: Starting | None = None

    @property
    def current(self) -> Server:
        """The server that gets the requests; RuntimeError before the first one."""
        if self._current is None:
            raise RuntimeError("no server was let in yet")
        return self._current

    def begin(self, in_force: ServePlan | None = None) -> Starting:
        """Starts the next server, unless one is starting already.

        Args:
            in_force: plan of a server that is to start again; by default another one is made.
        """
        if self.starting is None:
            self.count += 1
            self.starting = Starting(partial(self._make_plan, self.count, in_force))
        return self.starting

    def finish(self) -> Starting | None:
        """Lets the new server in when it is READY, and retires the old one.

        Returns:
            the start that has just succeeded or failed; None while there is none.
        """
        starting = self.starting
        if starting is None or not starting.is_done():
            return None
        self.starting = None
        if starting.failure is not None or starting.server is None:
            return starting
        try:
            old_nginx = self._switch_to(starting.server)
        except Exception as error:  # such as a full disk
            starting.failure = error
            stop_at_last(starting.server)
            return starting
        old, self._current = self._current, starting.server
        if old is not None:
            since = time.monotonic()
            self._retired.append(Retired(old, since, self._drain_s, old_nginx))
        return starting

    def is_let_in(self) -> bool:
        """Tells whether any server has got requests."""
        return self._current is not None

    def has_turned(self) -> bool:
        """Tells whether every new request reaches the current server."""
        return not any(retired.may_get_requests() for retired in self._retired)

    def end_retired(self) -> None:
        """Ends old servers that have answered everything; to be called regularly."""
        self._retired = [r for r in self._retired if not r.end_if_done()]

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:
            for server in (*(one.server for one in self._retired), self._current, self.starting):
                if server is not None:
                    stack.callback(server.stop)
