"""All processes of a server, wherever they went: its session, and who has its mark.

The mark is a variable in the environment. Some servers put their workers into sessions of their own
(BentoML's supervisor does), and a worker whose parent died belongs to nobody; the environment is
inherited whatever happens to the rest.

`python -m offpath.profiling.servers.marked MARK SESSION [FOLDER]...` waits as an
`offpath.serving.process.guard.Guard`, then ends the server and removes its temporary folders.
"""

from __future__ import annotations

import shutil
import sys

import psutil

from offpath.serving.process.guard import STOP_TIMEOUT_S, await_end
from offpath.serving.process.processes import (
    end_session,
    find_session_members,
    is_running,
)

MODULE = "offpath.profiling.servers.marked"
VARIABLE = "OFFPATH_SERVER_ID"


def find_members(mark: str, session_id: int) -> list[psutil.Process]:
    """Running processes of the session, those started with VARIABLE set to `mark`, those below.

    Below: a process that renamed itself (Ray's) may have overwritten its environment.
    """
    found = {process.pid: process for process in find_session_members(session_id)}
    for process in psutil.process_iter():
        if has_mark(process, mark):
            for member in [process, *descendants(process)]:
                found.setdefault(member.pid, member)
    return [found[pid] for pid in sorted(found) if is_running(found[pid])]


def has_mark(process: psutil.Process, mark: str) -> bool:
    """Whether it was started with the variable; another user's process was not."""
    try:
        return process.environ().get(VARIABLE) == mark
    except psutil.Error:
        return False


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """All processes below it; none when it has just ended."""
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def command_line(process: psutil.Process) -> str:
    """Its command line; empty when it has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def end_members(mark: str, session_id: int, timeout_s: float) -> None:
    """Asks the session's leader to end within a time, then kills whatever is left of the server."""
    # Before: below a leader that is gone, who hides its environment is found no more.
    members = find_members(mark, session_id)
    end_session(session_id, timeout_s)
    # Twice: a worker may have been born while the first list was made.
    for _ in range(2):
        members = [p for p in members if is_running(p)]
        left = members + find_members(mark, session_id)
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=STOP_TIMEOUT_S)


if __name__ == "__main__":
    await_end()
    end_members(sys.argv[1], int(sys.argv[2]), STOP_TIMEOUT_S)
    for folder in sys.argv[3:]:
        shutil.rmtree(folder, ignore_errors=True)
