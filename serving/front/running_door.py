"""Finds the front doors that run on this host, by their nginx."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from offpath.serving.front.reload_requests import SOCKET
from offpath.serving.torchserve.management import UNIX

NGINX_CONFIG = re.compile(r"nginx.* -c (\S+/nginx\.conf)")
LISTEN = re.compile(r"^ *listen (\S+:([0-9]+))", re.MULTILINE)


@dataclass(frozen=True)
class RunningDoor:
    """A front door before a server of this host, which this user can reach.

    Attributes:
        name: its folder, as the door names it.
        folder: path by which this process reaches that folder.
        address: HOST:PORT of predictions.
        ports: TCP ports of predictions and metrics.
        parent: process id of its `offpath serve`.
    """

    name: Path
    folder: Path
    address: str
    ports: frozenset[int]
    parent: int

    def answers(self, url: str) -> bool:
        """Tells whether an address of any kind, such as `offpath serve` prints, leads to it."""
        if url.startswith(UNIX):
            return Path(url.removeprefix(UNIX)).parent == self.name
        return is_port_here(url, self.ports)


def find_doors() -> list[RunningDoor]:
    """Returns the front doors that this user can reach; `offpath front` takes no requests."""
    doors = []
    for process in psutil.process_iter():
        # A process may have ended, and another user's folder cannot be read.
        with contextlib.suppress(psutil.Error, OSError):
            if config := NGINX_CONFIG.search(" ".join(process.cmdline())):
                path = see_path(Path(config[1]), process.pid)
                listens = LISTEN.findall(path.read_text("utf-8"))
                if listens and (path.parent / SOCKET).exists():
                    ports = frozenset(int(port) for _, port in listens)
                    name, address = Path(config[1]).parent, listens[0][0]
                    door = RunningDoor(name, path.parent, address, ports, process.ppid())
                    doors.append(door)
    return doors


def see_path(path: Path, pid: int) -> Path:
    """Returns a path of a process's by which this process reaches it.

    systemd's PrivateTmp gives a server a /tmp of its own.
    """
    if pid and not os.path.lexists(path):
        return Path(f"/proc/{pid}/root", *path.parts[1:])
    return path


def is_port_here(url: str, ports: Collection[int]) -> bool:
    """Tells whether an HTTP address is one of this host, with one of these ports."""
    parts = urlsplit(url)
    if (parts.port or {"http": 80, "https": 443}.get(parts.scheme)) not in ports:
        return False
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(parts.hostname or "", None)}
    except OSError:
        return False
    addresses = [one.address for many in psutil.net_if_addrs().values() for one in many]
    return not found.isdisjoint([*addresses, "0.0.0.0", "::"])
