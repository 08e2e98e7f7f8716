"""Ends a server's session when the process that started it is gone, however it went.

SIGKILL, the kernel's out-of-memory killer and a crash run no `finally`. A second process holds the
read end of a pipe whose write end is ours alone: the kernel closes it with us, the read returns,
and what we started is ended. prctl(PR_SET_PDEATHSIG) would reach the leading process alone, not
the workers that are left when that one is killed, and needs code between fork and exec.
"""

from __future__ import annotations

import os
import subprocess
import sys

MODULE = "offpath.serving.process.guard"
STOP_TIMEOUT_S = 15.0


class Guard:
    """Runs `python -m module arguments` as a process that waits for our end; see `await_end`."""

    def __init__(self, *arguments: object, module: str = MODULE) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # It may run where the package is only on sys.path.
            env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
            # What ends us (Ctrl-C, a kill of the process group) must not end it first.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def release(self) -> None:
        """What was guarded has been ended: nobody needs to wait any more. Safe to call twice."""
        self._process.kill()
        self._process.communicate()


def await_end() -> None:
    """Returns when the process that holds the other end of stdin is gone."""
    sys.stdin.buffer.read()


def main(session_id: str, *folders: str) -> None:
    """Waits, then ends the session and removes its temporary folders."""
    await_end()
    # Imported late: while it waits it shall cost next to nothing.
    import shutil

    from offpath.serving.process.processes import end_session

    end_session(int(session_id), STOP_TIMEOUT_S)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
