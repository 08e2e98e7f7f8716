"""Finds and ends all processes of a server.

Java leads its own session, and its workers stay in that session whatever their parent is. So the
session's members are found even after Java has ended.
"""

from __future__ import annotations

import contextlib
import os

import psutil

WORKER_SCRIPT = "model_service_worker.py"
# A forked worker has the command line of its fork server, and a launcher that waits for it.
FORK_SERVER_SCRIPT = "fork_server.py"
LAUNCHER_SCRIPT = "fork_launcher.py"


def find_session_members(session_id: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session_id and is_running(process):
                members.append(process)
        except (ProcessLookupError, PermissionError):
            # Ended in the meantime, or owned by another user.
            continue
    return members


def is_running(process: psutil.Process) -> bool:
    """Tells whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def find_workers(session_id: int) -> list[int]:
    """Returns the ids of the Python workers in a server's session, in order of start."""
    members = find_session_members(session_id)
    fork_servers = {p.pid for p in members if _runs(p, FORK_SERVER_SCRIPT)}
    workers = []
    for process in members:
        try:
            if (
                process.ppid() in fork_servers
                if process.pid in fork_servers
                else _runs(process, WORKER_SCRIPT) and not _runs(process, LAUNCHER_SCRIPT)
            ):
                workers.append((process.create_time(), process.pid))
        except psutil.Error:
            continue
    return [pid for _, pid in sorted(workers)]


def find_fork_helpers(session_id: int) -> list[int]:
    """Returns the ids of the fork server and the workers' launchers in a server's session."""
    workers = find_workers(session_id)
    return [
        process.pid
        for process in find_session_members(session_id)
        if process.pid not in workers
        and (_runs(process, FORK_SERVER_SCRIPT) or _runs(process, LAUNCHER_SCRIPT))
    ]


def _runs(process: psutil.Process, script: str) -> bool:
    try:
        return any(part.endswith(script) for part in process.cmdline())
    except psutil.Error:  # ended in the meantime
        return False


def end_session(session_id: int, timeout_s: float) -> None:
    """Asks a session's leader (Java, nginx) to end, waits, and kills the rest of the session."""
    members = find_session_members(session_id)
    leader = [process for process in members if process.pid == session_id]
    for process in leader:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by itself
            process.terminate()
    # Java unregisters the models and kills its workers; workers that it misses are killed below.
    psutil.wait_procs(leader, timeout=timeout_s)
    # Twice, because a worker may have started while the first list was made.
    for _ in range(2):
        left = find_session_members(session_id)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=timeout_s)
