"""Forks processes from one that has imported torch, and notes their ends.

TorchServe's fork server and Granian's supervisor each add what they do when a child ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import selectors
import signal
import sys

# linux/prctl.h
PR_SET_PDEATHSIG = 1


class Children:
    """The processes that this one, which has no threads, has forked and not yet buried.

    Attributes:
        selector: returns what was passed to `fork` when that child has ended.
    """

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self._pidfds: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._pidfds)

    def fork(self, data: object) -> int:
        """Forks a child, which the kernel kills when this process ends.

        Returns:
            its process id; 0 in the child, which keeps none of the descriptors here.

        Raises:
            OSError: a descriptor, process or memory is missing, so nothing was forked.
        """
        # The child's pidfd takes the place that this finds.
        os.close(os.dup(0))
        parent = os.getpid()
        # Otherwise a SIGTERM could run this process's handler in the child, or not reach the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                end_with_parent(parent)
                self.selector.close()
                for pidfd in self._pidfds.values():
                    os.close(pidfd)
            else:
                self._pidfds[pid] = os.pidfd_open(pid)
                self.selector.register(self._pidfds[pid], selectors.EVENT_READ, data)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return pid

    def note_end(self, pid: int) -> int:
        """Waits until a child has ended; returns its exit status, or the signal as -number."""
        pidfd = self._pidfds.pop(pid)
        self.selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)

    def terminate(self) -> None:
        for pidfd in self._pidfds.values():
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)


def describe_end(status: int) -> str:
    """Says how a process ended, by its exit status, or the signal as -number."""
    if status >= 0:
        return f"with exit status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal has no name
        return f"by signal {-status}"


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the process that forked this one has ended")


def import_shared() -> None:
    """Imports what every worker imports: torch and torchvision.

    The handler is left out because each archive brings its own. OpenBLAS is kept from starting
    threads, which do not survive a fork.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import offpath.handler.process.light_torchvision  # noqa: F401

    if os.environ.get("OFFPATH_PREDICTION_LOG", "").startswith("s3:"):
        # Saves half a second of CPU in each worker while its model loads.
        with contextlib.suppress(ImportError):
            import aiobotocore.session  # noqa: F401
    forget_offpath()


def import_torchserve() -> None:
    """Imports TorchServe's worker, but not ts.torch_handler, which asks CUDA for devices."""
    import ts.model_service_worker  # noqa: F401


def forget_offpath() -> None:
    """Lets the next import of `offpath` find another one, such as an archive's."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "offpath"]:
        del sys.modules[name]


def share_memory() -> None:
    """Keeps a garbage collection in a child from writing to, and so copying, every page."""
    gc.collect()
    gc.freeze()
