"""Forks TorchServe's workers from one process that has imported torch, whose pages they share.

Importing torch takes every worker two seconds and 280 MB of private memory (85 MB are tables that
CUDA's libraries fill in, 110 MB torch's operators, 90 MB Python's objects). Forked workers start
with all of that and copy only the pages that they write to. Models are loaded after the fork, and
nothing touches CUDA before it.

usage: python fork_server.py SOCKET OWNER
The fork server ends, with all workers, when the process OWNER (TorchServe's Java) ends.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import selectors
import signal
import socket
import sys
import time

# Replaces this script's folder, whose module names could hide others.
sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))

from offpath.serving.fork.children import (  # noqa: E402
    Children,
    import_shared,
    import_torchserve,
    share_memory,
)
from offpath.serving.fork.fork_request import LENGTH, ForkRequest, receive_request  # noqa: E402
from offpath.serving.process.resources import awaiting_resources  # noqa: E402

BACKLOG = 128
RETRY_S = 0.2
# A launcher sends its request as soon as it has connected.
RECEIVE_TIMEOUT_S = 5.0


class ForkServer:
    """Forks one worker per request until the process `owner` ends.

    `listener` must listen before `run`.
    """

    def __init__(self, listener: socket.socket, owner: int) -> None:
        self._listener = listener
        self._children = Children()
        self._owner = os.pidfd_open(owner)
        for file in (listener, self._owner):
            self._children.selector.register(file, selectors.EVENT_READ)
        # The worker of each launcher's connection, whose end means that the worker must end.
        self._workers: dict[socket.socket, int] = {}

    def run(self) -> tuple[ForkRequest, list[int]] | None:
        """Serves requests until the owner ends.

        Returns:
            in a forked worker, the request and its streams; in the server, None at the end.
        """
        while True:
            for key, _ in self._children.selector.select():
                if key.fileobj is self._listener:
                    forked = self._accept()
                    if forked is not None:
                        return forked
                elif key.fd == self._owner:
                    return None
                elif key.data in self._workers:  # otherwise both have just ended
                    self._end_both(key.data)

    def _accept(self) -> tuple[ForkRequest, list[int]] | None:
        try:
            launcher, _ = self._listener.accept()
        except OSError as error:
            # No descriptor is left: wait until one is free.
            say(f"cannot accept a launcher: {error!r}")
            time.sleep(RETRY_S)
            return None
        launcher.settimeout(RECEIVE_TIMEOUT_S)
        try:
            request, streams = receive_request(launcher)
        except OSError as error:
            say(f"cannot read a launcher's request: {error!r}")
            launcher.close()
            return None
        pid = -1
        with awaiting_resources(say):
            pid = self._children.fork(launcher)
        if pid == 0:
            os.close(self._owner)
            for connection in (self._listener, launcher, *self._workers):
                connection.close()
            return request, streams
        for stream in streams:
            os.close(stream)
        if pid < 0:
            launcher.close()
            return None
        with contextlib.suppress(OSError):  # the launcher is gone, which `run` notices
            launcher.sendall(LENGTH.pack(pid))
        self._workers[launcher] = pid
        self._children.selector.register(launcher, selectors.EVENT_READ, launcher)
        return None

    def _end_both(self, launcher: socket.socket) -> None:
        """Ends a launcher whose worker has ended, or a worker whose launcher was killed."""
        pid = self._workers.pop(launcher)
        os.kill(pid, signal.SIGKILL)  # changes nothing for a worker that has ended
        code = self._children.note_end(pid)
        with contextlib.suppress(OSError):  # the launcher is gone
            # As a shell reports a signal.
            launcher.sendall(LENGTH.pack(code if code >= 0 else 128 - code))
        self._children.selector.unregister(launcher)
        launcher.close()


def say(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk must not end the workers
        print(text, flush=True)


def run_worker(request: ForkRequest, streams: list[int], base_path: list[str]) -> None:
    """Turns this process into the worker that TorchServe asked for."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    script = request.argv[0]
    sys.argv[:] = request.argv
    sys.path[:] = [os.path.dirname(script), *python_path(), *base_path]
    runpy.run_path(script, run_name="__main__")


def python_path() -> list[str]:
    return [f for f in os.environ.get("PYTHONPATH", "").split(os.pathsep) if f]


def main(path: str, owner: int) -> None:
    """Listens, imports, and forks workers. Launchers may connect before the imports end."""
    base_path = [folder for folder in sys.path[1:] if folder not in python_path()]
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    # Before a launcher can connect, because a sandbox may forbid pidfds.
    fork_server = ForkServer(listener, owner)
    listener.bind(path)
    listener.listen(BACKLOG)
    import_torchserve()
    import_shared()
    share_memory()
    forked = fork_server.run()
    if forked is not None:
        run_worker(*forked, base_path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
