"""The base of every running server: awaited until READY, asked, drained and stopped.

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
from typing import IO, Any

from offpath.errors import ExpectedError
from offpath.serving.fork.children import describe_end
from offpath.serving.process.guard import Guard, start_guarded
from offpath.serving.process.processes import end_family
from offpath.serving.process.tmp_folders import make_short_tmp_dir, remove_folder
from offpath.serving.server.management import ManagementClient, ModelStatus
from offpath.serving.server.plan import ServePlan
from offpath.serving.server.server_log import (
    MAX_LINES,
    LogLine,
    find_last_error,
    find_server_failure,
    read_log,
)
from offpath.serving.server.server_settings import (
    LOOPBACK,
    choose_ports,
    socket_kinds,
    socket_path,
)
from offpath.serving.server.status_pages import StatusPages
from offpath.serving.server.worker_counts import WorkerCounts

STOP_TIMEOUT_S = 15.0
POLL_S = 0.1


class Server(ABC):
    """A server that runs from its construction to `stop`.

    As a context manager it waits until it is READY, and stops at the end. The run folder is removed
    then, except for the logs of a start that failed.

    Attributes:
        product: its name for users.
        log_name: file name of its log.
        pid: process id of the first process, which leads the family of the server.
        log_dir: folder of its logs.
        worker_counts: its workers, unless its own metrics count them.

    Raises:
        ExpectedError: the server is not installed, or a port is taken.
    """

    product: str
    log_name: str
    worker_counts: WorkerCounts | None = None

    def __init__(self, plan: ServePlan) -> None:
        self.plan, self.settings = plan, plan.settings
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._pages: StatusPages | None = None
        self._failed = False
        self._folder = make_short_tmp_dir()
        self.log_dir = (self.settings.log_dir or self._folder / "logs").resolve()
        try:
            # Logs may name clients and files: other users of the machine cannot read them.
            self.log_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            log = self.log_dir / self.log_name
            # Skip what earlier runs have logged.
            self._log_start = log.stat().st_size if log.exists() else 0
            self.ports = choose_ports(self.settings)
            self._launch()
        except BaseException:
            self.stop()
            raise

    @abstractmethod
    def _launch(self) -> None:
        """Starts the processes, without waiting for them."""

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

    def rotate_log(self) -> None:
        """Moves a log that has become large aside, where nobody else does."""

    def __enter__(self) -> Server:
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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
        return self.links().get(f"{kind}.sock")

    def links(self) -> dict[str, Path]:
        """Returns the sockets that a front door links to, by the name of the link."""
        kinds = socket_kinds(self.settings)
        return {f"{kind}.sock": socket_path(self._folder, kind) for kind in kinds}

    @property
    def urls(self) -> dict[str, str]:
        """The addresses to show, by what they are for."""
        return {
            "inference": self.inference_url,
            "management": self.management_url,
            "metrics": f"{self.metrics_url}/metrics",
        }

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
        keep_logs = self._failed and self.log_dir == self._folder / "logs"
        remove_folder(self._folder, keep="logs" if keep_logs else None)

    def management(self) -> ManagementClient:
        return ManagementClient(self.management_url)

    def describe_models(self, timeout_s: float = 30.0) -> list[ModelStatus] | None:
        """Returns every version of every model; None if the server does not answer."""
        try:
            with ManagementClient(self.management_url, timeout_s=timeout_s) as management:
                return [one for name in self.plan.names for one in management.describe(name)]
        except ExpectedError:
            return None

    def _start_process(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes], **options: Any
    ) -> None:
        """Starts the server's first process, and a guard that ends it if this process is killed."""
        # Connections take descriptors, and the usual soft limit is 1,024.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._process, self._guard = start_guarded(
            command, self._folder, env=environment, stdout=log, stderr=log, **options
        )
        self.pid = self._process.pid

    def _log_lines(self) -> list[LogLine]:
        return read_log(self.log_dir / self.log_name, self._log_start)

    def _raise_if_failed(self) -> None:
        if not self.is_running():
            failure = find_server_failure(self._log_lines())
            self._fail(f"{self.product} ended while starting", failure)

    def _fail_to_load(self, who: str, lines: list[str]) -> None:
        """Raises ExpectedError, with the archive's name if `who` of the log is one of ours."""
        for model in self.plan.models:
            file = Path(model.archive).name
            if who in (f"{model.name}_{model.version}", file):
                self._failed = True
                raise ExpectedError(
                    f"{file} (model {model.name} {model.version}) cannot be loaded: "
                    f"{find_last_error(lines)}\n  The log {self.log_path} has more"
                )
        self._fail("a model failed to load", lines)

    def _fail(self, what: str, lines: list[str]) -> None:
        self._failed = True
        shown = "".join(f"\n  {line}" for line in lines)
        raise ExpectedError(f"{what}. The log {self.log_path} says:{shown}")
