"""One TorchServe process tree: starts it, waits until its models are READY, stops it.

Everything that TorchServe keeps in the temporary folder (unzipped models, the workers' sockets)
goes to a run folder for this server: servers run side by side, and nothing is left behind.
"""

from __future__ import annotations

import resource
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from offpath.archive.mar_file import MarFile, read_archives
from offpath.errors import ExpectedError
from offpath.handler.wire_names import WARM_UP_VARIABLE
from offpath.serving.process.guard import Guard
from offpath.serving.process.in_flight import wait_until_answered
from offpath.serving.process.processes import end_session, find_workers
from offpath.serving.torchserve.launch import (
    make_command,
    make_environment,
    make_short_tmp_dir,
    remove_folder,
)
from offpath.serving.torchserve.management import ManagementClient
from offpath.serving.torchserve.server_log import (
    CONSOLE_LOG,
    MAX_LINES,
    SERVER_LOG,
    LogLine,
    find_last_error,
    find_load_failure,
    find_server_failure,
    has_exception,
    read_log,
)
from offpath.serving.torchserve.server_settings import (
    LOOPBACK,
    Ports,
    ServerSettings,
    build_properties,
    check_startable,
    choose_ports,
    format_properties,
    socket_kinds,
    socket_path,
)

T = TypeVar("T")
STOP_TIMEOUT_S = 15.0
POLL_S = 0.1
# A dying worker takes some milliseconds to write its traceback.
TRACEBACK_S = 0.5
# On a busy machine, Java can stop reading a worker's output before its traceback. A second later it
# starts the worker again.
NEXT_ATTEMPT_S = 6.0


def _once_started(value: T | None) -> T:
    if value is None:
        raise RuntimeError("the server is not started")
    return value


class TorchServe:
    """A TorchServe process tree. As a context manager it starts, waits until READY, and stops.

    The run folder is removed at the end, except for the logs of a start that failed.
    """

    product = "TorchServe"
    server_log = SERVER_LOG

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._tmp_dir: Path | None = None
        self._log_dir: Path | None = None
        # Marks the requests of the warm-up, which the prediction log leaves out.
        self.warm_up_key = secrets.token_hex(16)
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._ports: Ports | None = None
        self._failed = False
        self._log_start = 0
        # Archives, each with the name that its model is served under.
        self.archives: list[tuple[str, MarFile]] = []

    def __enter__(self) -> TorchServe:
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
    def java_pid(self) -> int:
        """Process id of Java, the leader of the session of the server and its workers."""
        return _once_started(self._process).pid

    @property
    def log_dir(self) -> Path:
        return _once_started(self._log_dir)

    @property
    def log_path(self) -> Path:
        """The log file to read first."""
        return self.log_dir / (CONSOLE_LOG if self.settings.stock else self.server_log)

    def rotate_log(self) -> None:
        """Moves a log that has become large aside; TorchServe does so itself (conf/log4j2.xml)."""

    def worker_pids(self) -> list[int]:
        """Returns the process ids of the Python workers, in order of start."""
        return find_workers(self.java_pid)

    def last_words(self) -> list[str]:
        return find_server_failure(self._log_lines()[-MAX_LINES:])

    def describe_end(self) -> str:
        status = None if self._process is None else self._process.poll()
        how = f"with exit status {status}"
        if status is not None and status < 0:
            how = f"by {signal.Signals(-status).name}"
        words = "\n  ".join(self.last_words())
        return f"{self.product} ended by itself {how}. Its log {self.log_path} says:\n  {words}"

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts Java and returns at once.

        Raises:
            ExpectedError: there is no Java, an archive is missing, a port is taken, or the
                configuration cannot be read.
        """
        check_startable(self.settings)
        self._failed = False
        self.archives = read_archives(self.settings.model_store, self.settings.models)
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self, timeout_s: float = 300.0) -> None:
        """Waits until every model has the workers that it asked for, all READY.

        Raises:
            ExpectedError: the server ended, a model or a worker failed to load, or the time is
                up. The message has lines from the log.
        """
        with self.management() as management:
            self._wait_until(lambda: self._all_ready(management), timeout_s)
        for kind in socket_kinds(self.settings):
            # A second lock: the run folder already belongs to this user alone.
            (self.socket(kind) or Path()).chmod(0o600)

    def _wait_until(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_done():
            self._raise_if_failed()
            if time.monotonic() > deadline:
                last = [line.message for line in self._log_lines()[-10:]]
                self._fail(f"{self.product} is not ready after {timeout_s:.0f} s", last)
            time.sleep(POLL_S)

    def drain(self, timeout_s: float) -> bool:
        """Waits until the requests in flight are answered; False if the time was up first.

        TorchServe resets them when it ends, and keeps accepting new ones until then. Only the front
        door can stop new requests.

        Raises:
            OSError: the requests cannot be counted.
        """
        return wait_until_answered(self.ports.inference, timeout_s)

    def stop(self) -> None:
        """Ends Java and its workers and removes the run folder. Safe to call twice."""
        if self._process is not None:
            end_session(self._process.pid, STOP_TIMEOUT_S)
            self._process.wait()
        if self._guard is not None:
            self._guard.release()
        if self._tmp_dir is not None:
            keep_logs = self._failed and self._log_dir == self._tmp_dir / "logs"
            remove_folder(self._tmp_dir, keep="logs" if keep_logs else None)

    def management(self) -> ManagementClient:
        return ManagementClient(self.management_url)

    def model_names(self) -> list[str]:
        # A name may have several versions.
        return list(dict.fromkeys(name for name, _ in self.archives))

    def _make_folders(self) -> tuple[Path, Path]:
        self._tmp_dir = make_short_tmp_dir()
        self._log_dir = (self.settings.log_dir or self._tmp_dir / "logs").resolve()
        # Logs may name clients and files: other users of the machine cannot read them.
        self._log_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        server_log = self._log_dir / self.server_log
        # Skip what earlier runs have logged. The console log is overwritten.
        self._log_start = server_log.stat().st_size if server_log.exists() else 0
        return self._tmp_dir, self._log_dir

    def _launch(self) -> None:
        tmp_dir, log_dir = self._make_folders()
        self._ports = choose_ports(self.settings)
        properties = build_properties(self.settings, self._ports, tmp_dir)
        config_path = tmp_dir / "effective.properties"
        config_path.write_text(format_properties(properties), encoding="utf-8")
        with open(log_dir / CONSOLE_LOG, "wb") as console:
            self._start_process(
                make_command(self.settings, properties.get("vmargs", ""), config_path, tmp_dir),
                make_environment(self.settings, tmp_dir, log_dir),
                console,
                cwd=tmp_dir,
            )

    def _start_process(
        self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes], **options: Any
    ) -> None:
        """Starts the server's first process, and a guard that ends it if this process is killed."""
        # Connections take descriptors, and the usual soft limit is 1,024.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._process = subprocess.Popen(
            command,
            env={**environment, WARM_UP_VARIABLE: self.warm_up_key},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C then reaches only this process, which ends the whole session.
            start_new_session=True,
            **options,
        )
        self._guard = Guard(self._process.pid, _once_started(self._tmp_dir))

    def _log_lines(self) -> list[LogLine]:
        server_log = read_log(self.log_dir / self.server_log, self._log_start)
        return server_log + read_log(self.log_dir / CONSOLE_LOG)

    def _all_ready(self, management: ManagementClient) -> bool:
        try:
            for name in self.model_names():
                for status in management.describe(name):
                    if status.ready_workers < max(1, status.min_workers):
                        return False
        except ExpectedError:
            # TorchServe does not listen yet.
            return False
        return True

    def _raise_if_failed(self) -> None:
        if find_load_failure(self._log_lines()) is not None:
            deadline = time.monotonic() + NEXT_ATTEMPT_S
            who = ""
            lines: list[str] = []
            while not has_exception(lines) and time.monotonic() < deadline:
                time.sleep(TRACEBACK_S)
                who, lines = find_load_failure(self._log_lines()) or ("", [])
            self._fail_to_load(who, lines)
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
