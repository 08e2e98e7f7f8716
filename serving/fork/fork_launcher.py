"""Runs in place of Python for TorchServe's workers: asks the fork server for one, and waits for it.

TorchServe holds this process for its worker: killing it kills the worker (the fork server sees to
that), and when the worker ends this process ends with its status. The first launcher starts the
fork server, so that it belongs to Java's session as the workers do.

usage: python -IS fork_launcher.py SOCKET SCRIPT [ARGUMENT]...
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time

# The folder that holds the package `offpath`: this file is offpath/serving/fork/fork_launcher.py.
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
sys.path.insert(0, ROOT)

from offpath.serving.fork.fork_request import LENGTH, ForkRequest  # noqa: E402

WORKER_SCRIPT = "model_service_worker.py"
START_TIMEOUT_S = 30.0
POLL_S = 0.01


def main(path: str, argv: list[str]) -> int:
    """Starts what TorchServe asked for.

    Returns:
        the worker's exit status.
    """
    if argv and argv[0].endswith(WORKER_SCRIPT):
        status = run_forked(path, argv)
        if status is not None:
            return status
    # pip, a metrics collector; or there is no fork server to be had.
    os.execv(sys.executable, [sys.executable, *argv])


def run_forked(path: str, argv: list[str]) -> int | None:
    """A worker from start to end.

    Returns:
        its exit status; None when it was never forked.
    """
    try:
        with connect(path) as server:
            ForkRequest(argv, dict(os.environ), os.getcwd()).send(server)
            if receive_number(server) is None:
                return None
            status = receive_number(server)
    except OSError as error:
        print(f"no fork server, a plain worker starts: {error!r}", file=sys.stderr)
        return None
    # Without a status the fork server has ended, and the worker with it.
    return 1 if status is None else status


def receive_number(server: socket.socket) -> int | None:
    """The worker's process id, later its status; None when the fork server has ended."""
    message = server.recv(LENGTH.size)
    return LENGTH.unpack(message)[0] if len(message) == LENGTH.size else None


def connect(path: str) -> socket.socket:
    """A connection to the fork server, which is started where there is none."""
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = try_connect(path)
        if server is None:
            process = start_server(path)
            deadline = time.monotonic() + START_TIMEOUT_S
            while server is None:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ConnectionError(f"it did not start; see {path}.log")
                time.sleep(POLL_S)
                server = try_connect(path)
    return server


def try_connect(path: str) -> socket.socket | None:
    """A connection; None when nobody listens."""
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        server.close()
        return None
    return server


def start_server(path: str) -> subprocess.Popen[bytes]:
    """Starts the fork server; TorchServe waits for the end of a worker's streams, not of its."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork_server.py")
    with open(f"{path}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, script, path, str(os.getppid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
