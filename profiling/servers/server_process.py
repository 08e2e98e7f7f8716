"""A server's processes: started in a session of their own, waited for, and all ended.

Some servers put their workers into sessions of their own, and a worker
whose parent died belongs to nobody. So each server also carries a mark: a variable in the
environment, which children inherit. An interrupted start and a killed benchmark leave neither a
process nor a temporary folder: `python -m offpath.profiling.servers.server_process MARK SESSION
[FOLDER]...` waits as an `offpath.serving.process.guard.Guard`, then ends what is left.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from offpath.errors import ExpectedError
from offpath.profiling.core.workplace import child_environment
from offpath.serving.process.guard import STOP_TIMEOUT_S as KILL_TIMEOUT_S
from offpath.serving.process.guard import Guard, await_end
from offpath.serving.process.processes import (
    end_family,
    find_family,
    is_running,
)

MODULE = "offpath.profiling.servers.server_process"
MARK_VARIABLE = "OFFPATH_SERVER_ID"
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.05
LOG_LINES_SHOWN = 8
LOG_LINE_CHARACTERS = 400
# Tells a cause from the tables and farewells that servers end with.
CAUSE = re.compile(r"error|exception|failed|cannot|no module|in use", re.IGNORECASE)
# Variables that would let another Python's packages into a server's environment.
HIDDEN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class ServerProcess:
    """The processes of a started server, see `start_process`."""

    def __init__(self, name: str, log: Path, mark: str, process: subprocess.Popen[bytes]) -> None:
        self.name, self.log = name, log
        self._mark, self._process = mark, process

    @property
    def pid(self) -> int:
        """The id of the leading process and of its session."""
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def members(self) -> list[psutil.Process]:
        return find_members(self._mark, self.pid)

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        # Imported here: the guard's process must stay small.
        import httpx

        deadline = time.monotonic() + timeout_s
        while True:
            with suppress(httpx.TransportError):
                if is_ready():
                    return
            if not self.is_running():
                raise ExpectedError(
                    f"server {self.name!r} ended while starting, with code"
                    f" {self._process.returncode}{self.quote_log()}"
                )
            if time.monotonic() > deadline:
                raise ExpectedError(
                    f"server {self.name!r} was not ready within {timeout_s:.0f} s"
                    f"{self.quote_log()}"
                )
            time.sleep(POLL_S)

    def quote_log(self) -> str:
        """Returns the log's name and its lines that name a cause (or the last), for a message."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines()
        chosen = [line for line in lines if CAUSE.search(line)] or lines
        shown = "".join(f"\n  {line[:LOG_LINE_CHARACTERS]}" for line in chosen[-LOG_LINES_SHOWN:])
        return f"; its log is {self.log}, which says:{shown}"

    def end(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        end_members(self._mark, self.pid, timeout_s)
        self._process.wait()


@contextmanager
def start_process(
    name: str,
    command: Sequence[str],
    log: Path,
    is_ready: Callable[[], bool],
    *,
    env: Mapping[str, str] = {},
    scratch: Path | None = None,
    timeout_s: float = START_TIMEOUT_S,
    stop_timeout_s: float = STOP_TIMEOUT_S,
) -> Iterator[ServerProcess]:
    """Starts a server and waits until it is ready; ends all of it when the block ends.

    Args:
        env: variables added to `server_environment`.
        scratch: temporary folder that is removed when this process is killed.
        stop_timeout_s: time that it gets to end by itself.

    Raises:
        ExpectedError: the server cannot be started, ends, or is not ready in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    with open(log, "wb") as output:
        try:
            # In a session of its own, Ctrl-C reaches us alone, and we end the whole session.
            process = subprocess.Popen(
                list(command),
                cwd=log.parent,
                env=server_environment({**env, MARK_VARIABLE: mark}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise ExpectedError(f"server {name!r} cannot be started: {error}") from error
    server = ServerProcess(name, log, mark, process)
    folders = [] if scratch is None else [scratch]
    guard = Guard(mark, server.pid, *folders, module=MODULE)
    try:
        server.wait_until(is_ready, timeout_s)
        yield server
    finally:
        server.end(stop_timeout_s)
        guard.release()


def is_ok(url: str) -> Callable[[], bool]:
    import httpx

    return lambda: httpx.get(url, trust_env=False, timeout=5.0).status_code == 200


def server_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Returns our environment without proxies and Python's own variables, and with `env`."""
    kept = {key: value for key, value in child_environment().items() if key not in HIDDEN_VARIABLES}
    return {**kept, **env}


def find_members(mark: str, leader_pid: int) -> list[psutil.Process]:
    """Returns the running processes of a session, those with the mark, and those below them.

    A process below may have overwritten its environment by renaming itself, as Ray's do.
    """
    found = {process.pid: process for process in find_family(leader_pid)}
    for process in psutil.process_iter():
        # It may have ended, or be another user's.
        with suppress(psutil.Error):
            if process.environ().get(MARK_VARIABLE) == mark:
                found.setdefault(process.pid, process)
                for member in process.children(recursive=True):
                    found.setdefault(member.pid, member)
    return [found[pid] for pid in sorted(found) if is_running(found[pid])]


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def end_members(mark: str, leader_pid: int, timeout_s: float) -> None:
    """Asks the session's leader to end within a time, then kills what is left of the server."""
    # Listed first: a process that hides its environment cannot be found once its leader is gone.
    members = find_members(mark, leader_pid)
    end_family(leader_pid, timeout_s)
    # Twice: a worker may have been born while the first list was made.
    for _ in range(2):
        members = [p for p in members if is_running(p)]
        left = members + find_members(mark, leader_pid)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=KILL_TIMEOUT_S)


if __name__ == "__main__":
    await_end()
    end_members(sys.argv[1], int(sys.argv[2]), KILL_TIMEOUT_S)
    for folder in sys.argv[3:]:
        shutil.rmtree(folder, ignore_errors=True)
