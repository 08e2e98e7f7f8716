"""Finds and ends all processes of a server.

A server's first process, such as Java, leads a group that the kernel calls a session. Its workers
stay there whatever their parent is, so this family is found even after its leader has ended.
"""

from __future__ import annotations

import contextlib
import os

import psutil

WORKER_SCRIPT = "model_service_worker.py"
# A forked worker has the command line of its fork server, and a launcher that waits for it.
FORK_SERVER_SCRIPT = "fork_server.py"
LAUNCHER_SCRIPT = "fork_launcher.py"


def find_family(leader_pid: int) -> list[psutil.Process]:
    members = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader_pid and is_running(process):
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


def find_workers(leader_pid: int) -> list[int]:
    """Returns the ids of the Python workers of a server, in order of start."""
    members = find_family(leader_pid)
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


def find_fork_helpers(leader_pid: int) -> list[int]:
    """Returns the ids of the fork server and the workers' launchers of a server."""
    workers = find_workers(leader_pid)
    return [
        process.pid
        for process in find_family(leader_pid)
        if process.pid not in workers
        and (_runs(process, FORK_SERVER_SCRIPT) or _runs(process, LAUNCHER_SCRIPT))
    ]


def _runs(process: psutil.Process, script: str) -> bool:
    try:
        return any(part.endswith(script) for part in process.cmdline())
    except psutil.Error:  # ended in the meantime
        return False


def end_family(leader_pid: int, timeout_s: float) -> None:
    """Asks a family's leader (Java, nginx) to end, waits, and kills the rest."""
    members = find_family(leader_pid)
    leader = [process for process in members if process.pid == leader_pid]
    for process in leader:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by itself
            process.terminate()
    # Java unregisters the models and kills its workers; workers that it misses are killed below.
    psutil.wait_procs(leader, timeout=timeout_s)
    # Twice, because a worker may have started while the first list was made.
    for _ in range(2):
        left = find_family(leader_pid)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=timeout_s)
