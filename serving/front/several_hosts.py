"""Runs `offpath front`: a front door before TorchServes on several hosts.

Two signs tell the state of a host. nginx sends a request that a host did not answer to another host
at once. This module asks each host's /ping every second: a host that accepts connections but has no
READY worker is asked only when no other host can be.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx

from offpath.errors import ExpectedError
from offpath.serving.front.behind import Behind
from offpath.serving.front.door import Door
from offpath.serving.front.door_settings import DoorSettings
from offpath.serving.front.nginx import find_nginx
from offpath.serving.front.one_host import settle_ports
from offpath.serving.process.descriptors import awaiting_descriptors
from offpath.serving.process.interrupts import Hangup, noting_hangup
from offpath.serving.session import View

LOOK_S = 1.0
PING_TIMEOUT_S = 1.0
# A busy host may miss one or two.
MISSES = 3


class Pings:
    """The recent replies of the hosts' /ping.

    Args:
        hosts: HOST:PORT of each host. A host counts as unwell until it has answered.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._misses = dict.fromkeys(hosts, MISSES)
        self._pool = ThreadPoolExecutor(len(hosts))

    @property
    def unwell(self) -> frozenset[str]:
        """Hosts that have missed too many pings in a row."""
        return frozenset(h for h, missed in self._misses.items() if missed >= MISSES)

    def look(self) -> None:
        hosts = list(self._misses)
        for host, is_fine in zip(hosts, self._pool.map(is_well, hosts)):
            self._misses[host] = 0 if is_fine else self._misses[host] + 1


def is_well(host: str) -> bool:
    try:
        reply = httpx.get(f"http://{host}/ping", timeout=PING_TIMEOUT_S, trust_env=False)
    except httpx.HTTPError:
        return False
    return reply.status_code == 200


class SeveralHostsSession:
    """One run of a door before several hosts."""

    def __init__(
        self, door: DoorSettings, behind: Behind, view: View, log_dir: Path | None = None
    ) -> None:
        self._view, self._behind = view, behind
        self._pings = Pings(behind.hosts)
        self._failure = ""
        self.door = Door(settle_ports(door), behind, find_nginx(), log_dir)

    def start(self) -> None:
        """Asks the hosts, starts nginx and shows that it listens. Hosts may become ready later.

        Raises:
            ExpectedError: nginx does not start, or a host's name cannot be resolved.
        """
        began = time.monotonic()
        self._pings.look()
        self.door.start()
        self._take_over()
        urls = {"inference": self.door.url, "metrics": f"{self.door.metrics_url}/metrics"}
        self._view.show_ready(urls, [], time.monotonic() - began)
        for host in sorted(self._pings.unwell):
            self._view.show_problem(f"{host} is not ready yet")

    def watch(self, hangup: Hangup) -> None:
        """Looks after door and hosts until a signal interrupts it; SIGHUP does not."""
        self._view.show_usage(self.door.url, "MODEL", self.door.settings.tokens is not None)
        while True:
            with awaiting_descriptors(self._view.show_problem):
                self.look_after()
            if hangup.take():
                self._view.show_problem(
                    "SIGHUP is ignored: this door reads tokens and certificates again when they "
                    "change, and each host has its own `offpath reload`"
                )
            time.sleep(LOOK_S)

    def look_after(self) -> None:
        """Asks the hosts once and adapts the door to their state."""
        before = self._pings.unwell
        self._pings.look()
        now = self._pings.unwell
        for host in sorted(now - before):
            self._view.show_problem(
                f"{host} does not answer /ping; it is asked only when no other host can be"
            )
        for host in sorted(before - now):
            self._view.show_problem(f"{host} answers /ping again")
        self.door.look_after()
        try:
            self._take_over()
            self.door.refresh()
            self._failure = ""
        except ExpectedError as error:
            if str(error) != self._failure:  # each look tries again
                self._view.show_problem(f"{error}; the door keeps its old files")
            self._failure = str(error)

    def stop(self) -> None:
        """Closes the door and answers the requests in flight."""
        try:
            if not self.door.drain():
                self._view.show_problem(
                    "some requests were not answered within --drain-s "
                    f"{self.door.settings.drain_s}"
                )
        finally:
            self.door.stop()

    def _take_over(self) -> None:
        unwell = self._pings.unwell
        self.door.set_ready(len(unwell) < len(self._behind.hosts))
        self.door.change(replace(self._behind, unwell=unwell))


def serve_hosts(door: DoorSettings, behind: Behind, view: View, log_dir: Path | None) -> None:
    """Runs the door until interrupted.

    Raises:
        ExpectedError: nginx does not start, or has too little room in memory for bodies.
    """
    session = SeveralHostsSession(door, behind, view, log_dir)
    with noting_hangup() as hangup, ExitStack() as end:
        end.callback(session.stop)
        session.start()
        session.watch(hangup)
