"""The servers of one session: one serves, one may be starting, old ones finish their requests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from offpath.serving.server.plan import ServePlan
from offpath.serving.server.server import Server
from offpath.serving.starting import Starting, stop_at_last

# nginx puts requests on a connection to a server for this many seconds, and then keeps the
# connection for as many seconds more.
KEEPALIVE_S = 2
# After this many seconds, nginx passes no request to an old server. It keeps a connection only if a
# request on it ended within KEEPALIVE_S of its start, and then for KEEPALIVE_S.
TURNED_S = 2 * KEEPALIVE_S + 0.5
# nginx may have looked up the old link just before it changed, and connect a moment later.
SETTLE_S = 0.5
UNIX_SOCKETS = Path("/proc/net/unix")
# include/uapi/linux/net.h: SS_CONNECTED.
CONNECTED = "03"


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

    def is_turned_from(self) -> bool:
        """Tells whether nginx passes no new requests over connections that it has kept."""
        return self._is_left() or time.monotonic() >= self.since + TURNED_S

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
    """Replaces the server of a session.

    Args:
        make_plan: returns the plan of the next server, given its number, and that of a server that
            is to start again.
        switch_to: sends new requests to a server, or raises and changes nothing (`Door.switch_to`).
        drain_s: seconds that an old server may take to answer its requests.
        count: number of the last server before.

    Attributes:
        starting: the server that is being started, if any.
    """

    def __init__(
        self,
        make_plan: Callable[[int, ServePlan | None], ServePlan],
        switch_to: Callable[[Server], list[int]],
        drain_s: float,
        count: int = 0,
    ) -> None:
        self._make_plan, self._switch_to = make_plan, switch_to
        self._drain_s, self._count = drain_s, count
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
            self._count += 1
            self.starting = Starting(partial(self._make_plan, self._count, in_force))
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
        return all(retired.is_turned_from() for retired in self._retired)

    def end_retired(self) -> None:
        """Ends old servers that have answered everything; to be called regularly."""
        self._retired = [r for r in self._retired if not r.end_if_done()]

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:
            for server in (*(one.server for one in self._retired), self._current, self.starting):
                if server is not None:
                    stack.callback(server.stop)


def count_connections(*sockets: Path) -> int:
    """Counts the connections to listeners on Unix sockets."""
    names = set(map(str, sockets))
    count = 0
    for line in UNIX_SOCKETS.read_text(encoding="utf-8", errors="replace").splitlines():
        # Num RefCount Protocol Flags Type St Inode Path
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[5] == CONNECTED and fields[7] in names:
            count += 1
    return count
