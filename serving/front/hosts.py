"""`offpath front`: a door before servers on several hosts that others start and stop.

Two things say how a host is. What it does to a request: one that it did not answer goes to another
host at once, nginx's part. And its /ping, asked here each second: a host that accepts requests and
has nobody to answer them is asked when no other can be.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx

from offpath.handler.errors import ExpectedError
from offpath.serving.front.binary import find_nginx
from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import FrontSettings
from offpath.serving.front.session import settle_ports
from offpath.serving.front.upstream import Behind
from offpath.serving.torchserve.session import View

LOOK_S = 1.0
PING_TIMEOUT_S = 1.0
# A host that is busy may miss one.
MISSES = 3


class Pings:
    """What the hosts' /ping have said so far.

    Args:
        hosts: HOST:PORT of each; unwell until they have answered.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._misses = dict.fromkeys(hosts, MISSES)
        self._pool = ThreadPoolExecutor(len(hosts))

    @property
    def unwell(self) -> frozenset[str]:
        """Those that have missed too many in a row."""
        return frozenset(h for h, missed in self._misses.items() if missed >= MISSES)

    def look(self) -> None:
        """Asks all of them, at once."""
        hosts = list(self._misses)
        for host, is_fine in zip(hosts, self._pool.map(is_well, hosts)):
            self._misses[host] = 0 if is_fine else self._misses[host] + 1


def is_well(host: str) -> bool:
    """Whether a host says that it has workers for requests."""
    try:
        reply = httpx.get(
            f"http://{host}/ping", timeout=PING_TIMEOUT_S, trust_env=False
        )
    except httpx.HTTPError:
        return False
    return reply.status_code == 200


class HostsSession:
    """One run of the door before several hosts."""

    def __init__(
        self,
        front: FrontSettings,
        behind: Behind,
        view: View,
        log_dir: Path | None = None,
    ) -> None:
        self._view, self._behind = view, behind
        self._pings = Pings(behind.hosts)
        self._binary = find_nginx()
        self.door = Door(settle_ports(front), behind, self._binary, log_dir)

    def start(self) -> None:
        """Asks the hosts, starts nginx before them, and says so; they may come later.

        Raises:
            ExpectedError: nginx does not start; a host's name cannot be resolved.
        """
        began = time.monotonic()
        self._pings.look()
        self.door.start()
        self._take_over()
        urls = {"inference": self.door.url}
        self._view.show_ready(urls, [], time.monotonic() - began)
        for host in sorted(self._pings.unwell):
            self._view.show_problem(f"{host} is not ready yet")

    def watch(self) -> None:
        """Looks after everything until a signal's exception."""
        self._view.show_usage(self.door.url, "MODEL")
        while True:
            self.look_after()
            time.sleep(LOOK_S)

    def look_after(self) -> None:
        """Asks the hosts, and takes over what has changed."""
        before = self._pings.unwell
        self._pings.look()
        now = self._pings.unwell
        for host in sorted(now - before):
            self._view.show_problem(
                f"{host} does not answer its /ping: it is asked when no other can be"
            )
        for host in sorted(before - now):
            self._view.show_problem(f"{host} is well")
        self.door.look_after()
        try:
            self._take_over()
            self.door.refresh()
        except ExpectedError as error:
            self._view.show_problem(f"{error}; the door goes on with what it had")

    def stop(self) -> None:
        """Closes the door and answers what is in flight."""
        try:
            if not self.door.drain():
                self._view.show_problem(
                    f"some requests took longer than --drain-s {self.door.settings.drain_s}"
                )
        finally:
            self.door.stop()

    def _take_over(self) -> None:
        unwell = self._pings.unwell
        self.door.set_ready(len(unwell) < len(self._behind.hosts))
        # An older nginx closes kept connections at a reload while requests are on their way: what
        # it sees of the requests themselves has to do there.
        if self._binary.has_keepalive_min_timeout:
            self.door.change(replace(self._behind, unwell=unwell))


def serve_hosts(
    front: FrontSettings, behind: Behind, view: View, log_dir: Path | None
) -> None:
    """Runs the door until interrupted.

    Args:
        behind: what is known of the hosts.
        view: told what happens.
        log_dir: for nginx's logs.

    Raises:
        ExpectedError: nginx does not start, or has no room in memory for bodies.
    """
    session = HostsSession(front, behind, view, log_dir)
    try:
        session.start()
        session.watch()
    finally:
        session.stop()
