"""One nginx: checked, started, told to reload, ended with or without what is in flight."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from offpath.handler.errors import ExpectedError
from offpath.serving.front.binary import NginxBinary
from offpath.serving.process.guard import Guard
from offpath.serving.process.processes import end_session, find_session_members

POLL_S = 0.05
STOP_TIMEOUT_S = 5.0
# Beyond worker_shutdown_timeout, which ends what does not end.
SHUTDOWN_SLACK_S = 2.0


class Nginx:
    """An nginx process and its workers, in a session of their own.

    Args:
        binary: see binary.py.
        config: the file to run.
        log: where it complains before it has read where to.
        folders: removed with it should we be killed.
    """

    def __init__(
        self, binary: NginxBinary, config: Path, log: Path, folders: tuple[Path, ...]
    ) -> None:
        self._binary, self._config, self._log = binary, config, log
        self._folders = folders
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    def check(self) -> None:
        """Lets nginx read its configuration.

        Raises:
            ExpectedError: it refuses, in its own words.
        """
        done = subprocess.run(self._command("-t"), capture_output=True, text=True)
        if done.returncode != 0:
            raise ExpectedError(f"nginx refuses its configuration:\n{done.stderr}")

    def start(self) -> None:
        """Starts it; returns at once."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches us alone, and we end the whole session.
                start_new_session=True,
            )
        self._guard = Guard(self._process.pid, *self._folders)

    @property
    def pid(self) -> int:
        """The master process."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.pid

    def is_running(self) -> bool:
        """Whether the master runs."""
        return self._process is not None and self._process.poll() is None

    def worker_pids(self) -> list[int]:
        """The workers, old ones that are ending too."""
        members = find_session_members(self.pid)
        return [member.pid for member in members if member.pid != self.pid]

    def reload(self) -> None:
        """Has it read its files again; requests in flight are not touched."""
        self._signal(signal.SIGHUP)

    def reopen_logs(self) -> None:
        """Has it go on in new log files, after the old ones were renamed."""
        self._signal(signal.SIGUSR1)

    def drain(self, timeout_s: float) -> bool:
        """Accepts no more, answers what it has, ends.

        Returns:
            False when some had to be given up.
        """
        self._signal(signal.SIGQUIT)
        deadline = time.monotonic() + timeout_s
        end = deadline + SHUTDOWN_SLACK_S
        while self.is_running() and time.monotonic() < end:
            time.sleep(POLL_S)
        return time.monotonic() < deadline

    def stop(self) -> None:
        """Ends it at once, and workers that a killed master left. Safe to call twice."""
        if self._process is not None:
            end_session(self._process.pid, STOP_TIMEOUT_S)
            self._process.wait()
        if self._guard is not None:
            self._guard.release()

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _command(self, *options: str) -> list[str]:
        log = ["-e", str(self._log)]
        return [str(self._binary.path), *log, "-c", str(self._config), *options]
