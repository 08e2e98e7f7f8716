"""All processes of a server, wherever they went: found by a variable in their environment.

Some servers put their workers into sessions of their own (BentoML's supervisor does), and a worker
whose parent died belongs to nobody. The environment is inherited whatever happens to the rest.

`python -m profiling.servers.marked SERVER_ID` waits as an `offpath.guard.Guard`, then kills them.
"""

from __future__ import annotations

import sys

import psutil

from offpath.serving.guard import STOP_TIMEOUT_S, await_end
from offpath.serving.processes import is_running

MODULE = "offpath.profiling.servers.marked"
VARIABLE = "OFFPATH_SERVER_ID"


def find_marked(server_id: str) -> list[psutil.Process]:
    """Running processes started with VARIABLE set to `server_id`, and those below them.

    Below: a process that renamed itself (Ray's) may have overwritten its environment.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if has_mark(process, server_id):
            for member in [process, *descendants(process)]:
                found.setdefault(member.pid, member)
    return [found[pid] for pid in sorted(found) if is_running(found[pid])]


def has_mark(process: psutil.Process, server_id: str) -> bool:
    """Whether it was started with the variable; another user's process was not."""
    try:
        return process.environ().get(VARIABLE) == server_id
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


def kill_marked(server_id: str, timeout_s: float) -> None:
    """Kills what is left of a server."""
    # Twice: a worker may have been born while the first list was made.
    for _ in range(2):
        left = find_marked(server_id)
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=timeout_s)


if __name__ == "__main__":
    await_end()
    kill_marked(sys.argv[1], STOP_TIMEOUT_S)
