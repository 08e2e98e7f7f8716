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
import ctypes
import gc
import os
import runpy
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass

# Replaces this script's folder, whose module names could hide others.
sys.path[0] = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))

from offpath.serving.fork.fork_request import LENGTH, ForkRequest, receive_request  # noqa: E402

# linux/prctl.h
PR_SET_PDEATHSIG = 1
BACKLOG = 128
RETRY_S = 0.2


@dataclass(frozen=True)
class Worker:
    """A forked worker.

    Attributes:
        launcher: connection to its launcher; the launcher's end means that the worker must end.
        pidfd: becomes readable when the worker has ended.
    """

    pid: int
    launcher: socket.socket
    pidfd: int


class ForkServer:
    """Forks one worker per request until the process `owner` ends.

    `listener` must listen before `run`.
    """

    def __init__(self, listener: socket.socket, owner: int) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._owner = os.pidfd_open(owner)
        self._selector.register(self._owner, selectors.EVENT_READ)
        self._workers: dict[int, Worker] = {}

    def run(self) -> tuple[ForkRequest, list[int]] | None:
        """Serves requests until the owner ends.

        Returns:
            in a forked worker, the request and its streams; in the server, None at the end.
        """
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    forked = self._accept()
                    if forked is not None:
                        return forked
                elif key.fd == self._owner:
                    # The kernel ends the workers (PR_SET_PDEATHSIG).
                    return None
                elif self._workers.get(key.fd) is key.data is not None:
                    # Otherwise this worker was just attended to, and its descriptor may be reused.
                    self._attend(key.data, key.fd)

    def _accept(self) -> tuple[ForkRequest, list[int]] | None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            # No descriptor is left: wait until one is free.
            print(f"cannot accept a launcher: {error!r}", flush=True)
            time.sleep(RETRY_S)
            return None
        try:
            request, streams = receive_request(connection)
        except OSError as error:
            print(f"cannot read a launcher's request: {error!r}", flush=True)
            connection.close()
            return None
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            end_with_parent(server)
            self._close()
            connection.close()
            return request, streams
        for stream in streams:
            os.close(stream)
        with contextlib.suppress(OSError):  # the launcher is gone, which `_attend` handles
            connection.sendall(LENGTH.pack(pid))
        worker = Worker(pid, connection, os.pidfd_open(pid))
        for fd in (worker.launcher.fileno(), worker.pidfd):
            self._workers[fd] = worker
            self._selector.register(fd, selectors.EVENT_READ, worker)
        return None

    def _attend(self, worker: Worker, fd: int) -> None:
        """Ends a launcher whose worker has ended, or a worker whose launcher was killed."""
        if fd != worker.pidfd:
            signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)
        _, status = os.waitpid(worker.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        with contextlib.suppress(OSError):  # the launcher is gone
            # As a shell reports a signal.
            worker.launcher.sendall(LENGTH.pack(code if code >= 0 else 128 - code))
        for fd in (worker.launcher.fileno(), worker.pidfd):
            self._selector.unregister(fd)
            del self._workers[fd]
        worker.launcher.close()
        os.close(worker.pidfd)

    def _close(self) -> None:
        """Closes the server's descriptors in a forked worker."""
        self._selector.close()
        self._listener.close()
        os.close(self._owner)
        for fd, worker in self._workers.items():
            if fd == worker.pidfd:
                os.close(fd)
                worker.launcher.close()


def import_shared() -> None:
    """Imports what every worker imports: torch with TorchServe's worker, and torchvision.

    ts.torch_handler is left out because it asks CUDA for devices, and the handler because each
    archive brings its own. OpenBLAS is kept from starting threads, which do not survive a fork.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import ts.model_service_worker  # noqa: F401

    from offpath.handler.process.lazy_imports import unused_imports_deferred

    with unused_imports_deferred():
        import torchvision  # noqa: F401
    if os.environ.get("OFFPATH_PREDICTION_LOG", "").startswith("s3:"):
        # Saves half a second of CPU in each worker while its model loads.
        with contextlib.suppress(ImportError):
            import aiobotocore.session  # noqa: F401
    for name in [n for n in sys.modules if n.partition(".")[0] == "offpath"]:
        del sys.modules[name]


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this worker when the fork server ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the fork server ended")


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
    server = ForkServer(listener, owner)
    listener.bind(path)
    listener.listen(BACKLOG)
    import_shared()
    gc.collect()
    # Otherwise a garbage collection in a worker would write to, and so copy, every object's page.
    gc.freeze()
    forked = server.run()
    if forked is not None:
        run_worker(*forked, base_path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
