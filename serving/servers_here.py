"""Finds the servers and front doors that run on this host, whoever started them.

A front door is found by its nginx, a server by TorchServe's Java or Granian's supervisor.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from offpath.errors import WrongOption
from offpath.handler.process.foreign_server import MAIN_CLASS
from offpath.serving.front.reload_requests import SOCKET
from offpath.serving.server.management import UNIX
from offpath.serving.server.properties import DEFAULTS, read_properties

NGINX_CONFIG = re.compile(r"nginx.* -c (\S+/nginx\.conf)")
IS_OURS = re.compile(r"\boffpath (serve|demo)\b")
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

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def answers(self, url: str) -> bool:
        """Tells whether an address of any kind, such as `offpath serve` prints, leads to it."""
        if url.startswith(UNIX):
            return Path(url.removeprefix(UNIX)).parent == self.name
        return is_port_here(url, self.ports)


@dataclass(frozen=True)
class FoundServer:
    """TorchServe's Java, or Granian's supervisor, on this host.

    Attributes:
        command: command line.
        folder: working folder.
        door: HOST:PORT at which a front door before it listens; empty without a door.
        pid: process id; 0 if unknown.
        ports: TCP ports at which the server, its door or `offpath serve` listen.
    """

    command: list[str]
    folder: Path
    door: str = ""
    pid: int = 0
    ports: frozenset[int] = frozenset()

    @property
    def config(self) -> Path | None:
        return self._path_after("-f", "--ts-config-file")

    @property
    def model_store(self) -> Path | None:
        return self._path_after("-s", "--model-store")

    @property
    def granian(self) -> Path | None:
        """Run folder of Granian's supervisor; None for TorchServe."""
        return self._path_after("--run")

    @property
    def url(self) -> str:
        inference = f"http://{self.door}" if self.door else self.address("inference")
        return self.address("management") if inference.startswith(UNIX) else inference

    @property
    def log_name(self) -> str:
        return "torchserve.log" if self.granian is None else "granian.log"

    def properties(self) -> dict[str, str]:
        """Returns the content of the properties file; empty without a file."""
        config = self.config
        return read_properties(config) if config and config.is_file() else {}

    def address(self, kind: str) -> str:
        """Returns the address of `inference`, `management` or `metrics` on this host."""
        if self.granian is not None:
            # Answers /metrics too, also where Prometheus asks a port.
            name = "inference" if kind == "inference" else "management"
            return f"{UNIX}{self.granian / name}.sock"
        key = f"{kind}_address"
        address = self.properties().get(key, DEFAULTS[key])
        if address.startswith(UNIX):
            return f"{UNIX}{see_path(Path(address.removeprefix(UNIX)), self.pid)}"
        return address.replace("//0.0.0.0", "//127.0.0.1")

    def answers(self, url: str) -> bool:
        """Tells whether an address of any kind, such as `offpath serve` prints, leads to it."""
        if not url.startswith(UNIX):
            return is_port_here(url, self.ports)
        socket = see_path(Path(url.removeprefix(UNIX)), self.pid)
        if os.path.islink(socket):  # the door's
            socket = see_path(Path(os.readlink(socket)), self.pid)
        return f"{UNIX}{socket}" == self.address("management")

    def _path_after(self, *options: str) -> Path | None:
        for option, value in zip(self.command, self.command[1:]):
            if option in options:
                return see_path(self.folder / value, self.pid)
        return None


def find_doors() -> list[RunningDoor]:
    """Returns the front doors that this user can reach."""
    doors: dict[tuple[Path, int], RunningDoor] = {}
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
                    # A second nginx of this door checks or reloads the configuration.
                    doors.setdefault((name, door.parent), door)
    return list(doors.values())


def find_servers() -> list[FoundServer]:
    found = []
    doors = {door.parent: door.address for door in find_doors()}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if MAIN_CLASS in command or _is_supervisor(process, command):
                door, ports = doors.get(process.ppid(), ""), _list_ports(process, command)
                folder = Path(process.cwd())
                found.append(FoundServer(command, folder, door, process.pid, ports))
        except psutil.Error:
            continue
    return found


def _is_supervisor(process: psutil.Process, command: list[str]) -> bool:
    """Tells Granian's supervisor from its workers, which are forked with the same command line."""
    if not any(part.endswith("granian/supervisor.py") for part in command[1:2]):
        return False
    parent = process.parent()
    return parent is None or parent.cmdline() != command


def _list_ports(server: psutil.Process, command: list[str]) -> frozenset[int]:
    """Returns the TCP ports at which a server, its door or its `offpath serve` listen."""
    family = [server, *server.children(recursive=True)]
    parent = server.parent()
    # A shell or systemd has other children too.
    if parent is not None and IS_OURS.search(" ".join(parent.cmdline())):
        family += [parent, *parent.children()]
    # Granian's workers listen themselves, and all of them may have ended.
    ports = {int(port) for option, port in zip(command, command[1:]) if option == "--port"}
    for one in family:
        with contextlib.suppress(psutil.Error):
            for connection in one.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    ports.add(connection.laddr.port)
    return frozenset(ports)


def refuse_several(found: Iterable[RunningDoor | FoundServer], what: str) -> None:
    """Asks for --url where more than one server, or front door, is meant.

    Raises:
        WrongOption: there are several.
    """
    urls = dict.fromkeys(one.url for one in found)
    if len(urls) > 1:
        named = " or ".join(f"--url {url}" for url in urls)
        raise WrongOption(f"several {what} run here; name one: {named}")


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
