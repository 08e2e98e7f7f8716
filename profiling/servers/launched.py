"""A server under test as processes: started in a session of its own, waited for, ended whole.

An interrupted start and a killed benchmark leave nothing behind: no process (see `marked.py`) and
no temporary folder.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
import psutil

from offpath.handler.errors import ExpectedError
from offpath.profiling.load.plan import child_environment
from offpath.profiling.servers.marked import (
    MODULE,
    VARIABLE,
    end_members,
    find_members,
)
from offpath.serving.process.guard import Guard
from offpath.serving.process.ports import check_port_free

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 180.0
POLL_S = 0.05
LOG_LINES_SHOWN = 8
LOG_LINE_CHARACTERS = 400
# What tells a cause from the tables and farewells that servers end with.
CAUSE = re.compile(r"error|exception|failed|cannot|no module|in use", re.IGNORECASE)
# How servers in C++, Java, Python and Rust say it.
PORT_TAKEN = re.compile(
    r"address (is )?already in use|port is already (in use|taken)|EADDRINUSE|BindException"
    r"|unavailable socket",
    re.IGNORECASE,
)
# Below those that the kernel chooses itself, for outgoing connections too.
LOW_PORTS = range(20_000, 32_000)
# What would let another Python's packages into a server's environment.
HIDDEN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
Running = TypeVar("Running")


@dataclass(frozen=True)
class Launch:
    """How to start a server.

    Attributes:
        name: for messages.
        command: its leading process.
        log: file for its output.
        env: variables over ours (see `server_environment`).
        cwd: its working folder; the log's by default.
        scratch: a temporary folder that goes too when we are killed.
        stop_timeout_s: how long it may take to end by itself.
    """

    name: str
    command: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    scratch: Path | None = None
    stop_timeout_s: float = 15.0


class ServerProcess:
    """The processes of a started server."""

    def __init__(
        self, launch: Launch, mark: str, process: subprocess.Popen[bytes]
    ) -> None:
        self.launch = launch
        self._mark, self._process = mark, process

    @property
    def pid(self) -> int:
        """The leading process; its id is the session's too."""
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the leading process still runs."""
        return self._process.poll() is None

    def members(self) -> list[psutil.Process]:
        """All its processes, by process id."""
        return find_members(self._mark, self.pid)

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Waits for the server to answer.

        Raises:
            ExpectedError: it ended, or was not ready in time; the message has its last words.
        """
        deadline = time.monotonic() + timeout_s
        while not answers(is_ready):
            if not self.is_running():
                raise ExpectedError(
                    f"server {self.launch.name!r} ended while starting, with code"
                    f" {self._process.returncode}{self.last_words()}"
                )
            if time.monotonic() > deadline:
                raise ExpectedError(
                    f"server {self.launch.name!r} was not ready within {timeout_s:.0f} s"
                    f"{self.last_words()}"
                )
            time.sleep(POLL_S)

    def last_words(self) -> str:
        """The log's name and its lines that name a cause (else the last), for a message."""
        text = self.launch.log.read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines()
        chosen = [line for line in lines if CAUSE.search(line)] or lines
        shown = "".join(
            f"\n  {line[:LOG_LINE_CHARACTERS]}" for line in chosen[-LOG_LINES_SHOWN:]
        )
        return f"; its log is {self.launch.log}, which says:{shown}"

    def end(self) -> None:
        """Asks the leading process to end and kills what is left of the server."""
        end_members(self._mark, self.pid, self.launch.stop_timeout_s)
        self._process.wait()


def answers(is_ready: Callable[[], bool]) -> bool:
    """Whether `is_ready` says so; a server that does not listen yet is not."""
    try:
        return is_ready()
    except httpx.TransportError:
        return False


def is_ok(url: str) -> Callable[[], bool]:
    """A readiness check: GET `url` gives 200."""
    return lambda: httpx.get(url, trust_env=False, timeout=5.0).status_code == 200


def server_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Our environment without proxies and Python's own variables, and `env` over it."""
    kept = {
        key: value
        for key, value in child_environment().items()
        if key not in HIDDEN_VARIABLES
    }
    return {**kept, **env}


@contextmanager
def launched(
    launch: Launch, is_ready: Callable[[], bool], timeout_s: float = START_TIMEOUT_S
) -> Iterator[ServerProcess]:
    """Starts a server, waits until it is ready; ends all of it at the end.

    Raises:
        ExpectedError: it cannot be started, ends, or is not ready in time.
    """
    launch.log.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    with open(launch.log, "wb") as log:
        try:
            # A session of its own: Ctrl-C reaches us alone, and we end the whole session.
            process = subprocess.Popen(
                list(launch.command),
                cwd=launch.cwd or launch.log.parent,
                env=server_environment({**launch.env, VARIABLE: mark}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ExpectedError(
                f"server {launch.name!r} cannot be started: {error}"
            ) from error
    server = ServerProcess(launch, mark, process)
    folders = [] if launch.scratch is None else [launch.scratch]
    guard = Guard(mark, server.pid, *folders, module=MODULE)
    try:
        server.wait_until(is_ready, timeout_s)
        yield server
    finally:
        server.end()
        guard.release()


@contextmanager
def on_free_ports(
    start: Callable[[], AbstractContextManager[Running]],
) -> Iterator[Running]:
    """Enters `start()`, and once more where a port was taken after it had been found free.

    Args:
        start: chooses its ports anew each time; its ExpectedError has the server's last words.
    """
    with ExitStack() as stack:
        try:
            running = stack.enter_context(start())
        except ExpectedError as error:
            if not PORT_TAKEN.search(str(error)):
                raise
            running = stack.enter_context(start())
        yield running


def choose_low_ports(count: int) -> list[int]:
    """Distinct free ports below 32768, at random: no outgoing connection takes one meanwhile."""
    ports: list[int] = []
    for port in random.sample(LOW_PORTS, len(LOW_PORTS)):
        with contextlib.suppress(ExpectedError):
            check_port_free(LOOPBACK, port, "another start")
            ports.append(port)
        if len(ports) == count:
            return ports
    raise ExpectedError(f"no free port from {LOW_PORTS[0]} to {LOW_PORTS[-1]}")


def environment_path_variable(python: Path) -> str:
    """PATH with an environment's programs first."""
    return os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
