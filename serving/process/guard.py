"""Ends a server's processes when the process that started it is gone, even after SIGKILL.

SIGKILL, the kernel's out-of-memory killer and a crash run no `finally`. So a second process, the
guard, holds the read end of a pipe whose write end only the starting process has. When that process
ends, the kernel closes the pipe, the guard's read returns, and the guard ends the server.
prctl(PR_SET_PDEATHSIG) would reach only the leading process, not the workers that stay when it is
killed, and would need code between fork and exec.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from offpath.serving.process.interrupts import holding_signals

MODULE = "offpath.serving.process.guard"
STOP_TIMEOUT_S = 15.0


class Guard:
    """A process `python -m module arguments` that waits for the end of this one (`await_end`)."""

    def __init__(self, *arguments: object, module: str = MODULE) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # The package may be importable only through sys.path.
            env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
            # Ctrl-C or a kill of the process group must not end the guard first.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def release(self) -> None:
        """Ends the guard after its server has ended. Safe to call twice."""
        self._process.kill()
        self._process.communicate()


def start_guarded(
    command: Sequence[str | os.PathLike[str]], *folders: object, **options: Any
) -> tuple[subprocess.Popen[bytes], Guard]:
    """Starts a process in a session of its own, and its guard, which removes the folders too.

    Raises:
        OSError: one of the two cannot be started; then neither is left.
    """
    # Ctrl-C reaches only this process, which then ends the other. A signal between the two starts
    # would leave a process that nobody ends.
    with holding_signals():
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, **options
        )
        try:
            return process, Guard(process.pid, *folders)
        except OSError:
            from offpath.serving.process.processes import end_family

            end_family(process.pid, STOP_TIMEOUT_S)
            process.wait()
            raise


def await_end() -> None:
    """Waits until the process that holds the other end of stdin has ended."""
    sys.stdin.buffer.read()


def follow_parent() -> None:
    """Ends this process when its parent is killed; a pool's process would wait for ever."""
    # Imported here, so that a waiting guard takes little memory.
    import multiprocessing
    import threading

    parent = multiprocessing.parent_process()
    if parent is None:
        raise RuntimeError("not in a process of multiprocessing")

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(leader_pid: str, *folders: str) -> None:
    """Waits for the end of the starting process, then ends the server and removes its folders."""
    await_end()
    # Imported late, so that a waiting guard takes little memory.
    import shutil

    from offpath.serving.process.processes import end_family

    end_family(int(leader_pid), STOP_TIMEOUT_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
