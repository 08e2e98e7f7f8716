"""Stands in for Python when TorchServe starts a worker: has the fork server fork one, and waits.

TorchServe treats this process as its worker. When TorchServe kills it, the fork server kills the
worker; when the worker ends, this process ends with the worker's status. The first launcher starts
the fork server, which thus belongs to Java's session like the workers.

usage: python -IS fork_launcher.py SOCKET SCRIPT [ARGUMENT]...
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time

# The folder with the package `offpath`; this file is offpath/serving/fork/fork_launcher.py.
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
sys.path.insert(0, ROOT)

from offpath.serving.fork.fork_request import LENGTH, ForkRequest  # noqa: E402

WORKER_SCRIPT = "model_service_worker.py"
START_TIMEOUT_S = 30.0
POLL_S = 0.01


def main(path: str, argv: list[str]) -> int:
    """Starts a worker, or any other script that TorchServe runs, and returns its exit status."""
    if argv and argv[0].endswith(WORKER_SCRIPT):
        status = run_forked(path, argv)
        if status is not None:
            return status
    # pip, the metrics collector, or a worker without a fork server.
    os.execv(sys.executable, [sys.executable, *argv])


def run_forked(path: str, argv: list[str]) -> int | None:
    """Has a worker forked and returns its exit status; None if none was forked."""
    try:
        with connect(path) as connection:
            ForkRequest(argv, dict(os.environ), os.getcwd()).send(connection)
            if receive_number(connection) is None:
                return None
            status = receive_number(connection)
    except OSError as error:
        print(
            f"the fork server cannot be reached ({error!r}); starting a plain worker",
            file=sys.stderr,
        )
        return None
    # No status means that the fork server has ended, and the worker with it.
    return 1 if status is None else status


def receive_number(connection: socket.socket) -> int | None:
    """Receives the worker's process id or exit status; None if the fork server has ended."""
    message = connection.recv(LENGTH.size)
    return LENGTH.unpack(message)[0] if len(message) == LENGTH.size else None


def connect(path: str) -> socket.socket:
    """Connects to the fork server, and starts it if there is none."""
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = try_connect(path)
        if connection is None:
            process = start_fork_server(path)
            deadline = time.monotonic() + START_TIMEOUT_S
            while connection is None:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ConnectionError(f"the fork server did not start; read {path}.log")
                time.sleep(POLL_S)
                connection = try_connect(path)
    return connection


def try_connect(path: str) -> socket.socket | None:
    """Connects to the fork server; None if nothing listens."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    return connection


def start_fork_server(path: str) -> subprocess.Popen[bytes]:
    """Starts the fork server, without the streams on whose end TorchServe waits."""
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
