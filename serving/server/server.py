"""The base of every server: started, awaited until READY, asked, drained and stopped.

Everything that a server keeps in the temporary folder (unzipped models, the workers' sockets) goes
to a run folder of its own: servers run side by side, and nothing is left behind.
"""

from __future__ import annotations

import resource
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from offpath.archive.mar_file import MarFile
from offpath.errors import ExpectedError
from offpath.serving.fork.children import describe_end
from offpath.serving.process.guard import Guard
from offpath.serving.process.processes import end_family
from offpath.serving.process.tmp_folders import make_short_tmp_dir, remove_folder
from offpath.serving.server.management import ManagementClient, ModelStatus
from offpath.serving.server.model_settings import read_served
from offpath.serving.server.served_model import ServedModel
from offpath.serving.server.server_log import (
    MAX_LINES,
    LogLine,
    find_last_error,
    find_server_failure,
    read_log,
)
from offpath.serving.server.server_settings import (
    LOOPBACK,
    Ports,
    ServerSettings,
    check_startable,
    choose_ports,
    socket_kinds,
    socket_path,
)
from offpath.serving.server.status_pages import StatusPages
from offpath.serving.server.worker_counts import WorkerCounts

T = TypeVar("T")
STOP_TIMEOUT_S = 15.0
POLL_S = 0.1


def _once_started(value: T | None) -> T:
    if value is None:
        raise RuntimeError("the server is not started")
    return value


class Server(ABC):
    """A server's processes. As a context manager it starts, waits until READY, and stops.

    The run folder is removed at the end, except for the logs of a start that failed.

    Attributes:
        product: its name for users.
        log_name: file name of its log.
        worker_counts: its workers, unless its own metrics count them.
        archives: each archive with the name that its model is served under.
    """

    product: str
    log_name: str

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._tmp_dir: Path | None = None
        self._log_dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._pages: StatusPages | None = None
        self._ports: Ports | None = None
        self._failed = False
        self._log_start = 0
        self.worker_counts: WorkerCounts | None = None
        self.archives: list[tuple[str, MarFile]] = []

    @abstractmethod
    def _launch(self, folder: Path) -> None:
        """Starts the processes, with `folder` as run folder and `self.ports`."""

    @abstractmethod
    def worker_pids(self) -> list[int]:
        """Returns the process ids of the Python workers, in order of start."""

    @abstractmethod
    def wait_until_ready(self, timeout_s: float = 300.0) -> None:
        """Waits until every model has the workers that it asked for, all READY.

        Raises:
            ExpectedError: the server ended, a model or a worker failed to load, or the time is
                up. The message has lines from the log.
        """

    @abstractmethod
    def drain(self, timeout_s: float) -> bool:
        """Waits until the requests in flight are answered; False if the time was up first.

        Raises:
            OSError: the requests cannot be counted.
        """

    def warm_up(self, statuses: Iterable[ModelStatus]) -> None:
        """Sends requests where READY workers are not yet as fast as later."""

    def plan_routes(self, archives: Sequence[tuple[str, MarFile]]) -> tuple[ServedModel, ...]:
        """Returns models with sockets of their own; empty if the server finds the model itself."""
        return ()

    def list_ignored_keys(self) -> list[str]:
        """Returns the keys of a user's config.properties that this server ignores."""
        return []

    def rotate_log(self) -> None:
        """Moves a log that has become large aside, where nobody else does."""

    def __enter__(self) -> Server:
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def ports(self) -> Ports:
        """The ports in use; RuntimeError before the start."""
        return _once_started(self._ports)

    @property
    def inference_url(self) -> str:
        return f"http://{self.settings.host}:{self.ports.inference}"

    @property
    def management_url(self) -> str:
        """Base URL of the management API; `unix:PATH` for a socket."""
        socket = self.socket("management")
        if socket is not None:
            return f"unix:{socket}"
        return f"http://{LOOPBACK}:{self.ports.management}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self.settings.host}:{self.ports.metrics}"

    def socket(self, kind: str) -> Path | None:
        """Returns the socket of `inference`, `management` or `metrics`; None if that has a port."""
        if kind not in socket_kinds(self.settings):
            return None
        return socket_path(_once_started(self._tmp_dir), kind)

    def links(self) -> dict[str, Path]:
        """Returns the sockets that a front door links to, by the name of the link."""
        sockets = {kind: self.socket(kind) for kind in socket_kinds(self.settings)}
        return {f"{kind}.sock": path for kind, path in sockets.items() if path}

    @property
    def urls(self) -> dict[str, str]:
        """The addresses to show, by what they are for."""
        return {
            "inference": self.inference_url,
            "management": self.management_url,
            "metrics": f"{self.metrics_url}/metrics",
        }

    @property
    def pid(self) -> int:
        """Process id of the first process, which leads the family of the server."""
        return _once_started(self._process).pid

    @property
    def log_dir(self) -> Path:
        return _once_started(self._log_dir)

    @property
    def log_path(self) -> Path:
        """The log file to read first."""
        return self.log_dir / self.log_name

    def last_words(self) -> list[str]:
        return find_server_failure(self._log_lines()[-MAX_LINES:])

    def describe_end(self) -> str:
        status = None if self._process is None else self._process.poll()
        how = "with an unknown status" if status is None else describe_end(status)
        words = "\n  ".join(self.last_words())
        return f"{self.product} ended by itself {how}. Its log {self.log_path} says:\n  {words}"

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def list_sockets(self) -> list[Path]:
        """Returns the sockets that are in the run folder as long as the server runs."""
        return list(self.links().values())

    def start(self) -> None:
        """Starts the processes and returns at once.

        Raises:
            ExpectedError: the server is not installed, an archive is missing, a port is taken, or
                the configuration cannot be read.
        """
        check_startable(self.settings)
        self._failed = False
        self.archives = read_served(self.settings)
        try:
            folder = self._make_folders()
            self._ports = choose_ports(self.settings)
            self._launch(folder)
        except BaseException:
            self.stop()
            raise

    def _wait_until(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_done():
            self._raise_if_failed()
            if time.monotonic() > deadline:
                last = [line.message for line in self._log_lines()[-10:]]
                self._fail(f"{self.product} is not ready after {timeout_s:.0f} s", last)
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ends the processes and removes the run folder. Safe to call twice."""
        if self._process is not None:
            end_family(self._process.pid, STOP_TIMEOUT_S)
            self._process.wait()
        if self._guard is not None:
            self._guard.release()
        if self._pages is not None:
            self._pages.close()
        if self._tmp_dir is not None:
            keep_logs = self._failed and self._log_dir == self._tmp_dir / "logs"
            remove_folder(self._tmp_dir, keep="logs" if keep_logs else None)

    def management(self) -> ManagementClient:
        return ManagementClient(self.management_url)

    def model_names(self) -> list[str]:
        # A name may have several versions.
        return list(dict.fromkeys(name for name, _ in self.archives))

    def _make_folders(self) -> Path:
        self._tmp_dir = make_short_tmp_dir()
        self._log_dir = (self.settings.log_dir or self._tmp_dir / "logs").resolve()
        # Logs may name clients and files: other users of the machine cannot read them.
        self._log_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        log = self._log_dir / self.log_name
        # Skip what earlier runs have logged.
        self._log_start = log.stat().st_size if log.exists() else 0
        return self._tmp_dir

    def _start_process(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes], **options: Any
    ) -> None:
        """Starts the server's first process, and a guard that ends it if this process is killed."""
        # Connections take descriptors, and the usual soft limit is 1,024.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C then reaches only this process, which ends the whole server.
            start_new_session=True,
            **options,
        )
        self._guard = Guard(self._process.pid, _once_started(self._tmp_dir))

    def _log_lines(self) -> list[LogLine]:
        return read_log(self.log_dir / self.log_name, self._log_start)

    def _raise_if_failed(self) -> None:
        if not self.is_running():
            failure = find_server_failure(self._log_lines())
            self._fail(f"{self.product} ended while starting", failure)

    def _fail_to_load(self, who: str, lines: list[str]) -> None:
        """Raises ExpectedError, with the archive's name if `who` of the log is one of ours."""
        for name, archive in self.archives:
            if who in (f"{name}_{archive.model_version}", archive.path.name):
                self._failed = True
                raise ExpectedError(
                    f"{archive.path.name} (model {name} {archive.model_version}) cannot be loaded: "
                    f"{find_last_error(lines)}\n  The log {self.log_path} has more"
                )
        self._fail("a model failed to load", lines)

    def _fail(self, what: str, lines: list[str]) -> None:
        self._failed = True
        shown = "".join(f"\n  {line}" for line in lines)
        raise ExpectedError(f"{what}. The log {self.log_path} says:{shown}")
