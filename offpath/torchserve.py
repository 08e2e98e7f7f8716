"""One TorchServe: started, waited for until its models are READY, stopped without a trace.

Everything TorchServe keeps in the temp folder (unzipped models, the workers' sockets) goes to a
folder of its own, so that servers run side by side and nothing is left behind.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from offpath.errors import ExpectedError
from offpath.java import find_java
from offpath.management import ManagementClient
from offpath.mar_file import MarFile, read_mar
from offpath.ports import check_port_free
from offpath.processes import end_session, find_workers
from offpath.properties import format_properties
from offpath.server_log import (
    CONSOLE_LOG,
    MAX_LINES,
    SERVER_LOG,
    LogLine,
    find_load_failure,
    find_server_failure,
    read_log,
)
from offpath.settings import (
    CONF_DIR,
    Ports,
    ServerSettings,
    build_properties,
    choose_ports,
)

__all__ = ["ServerSettings", "TorchServe"]

MAIN_CLASS = "org.pytorch.serve.ModelServer"
LOG4J_PROPERTY = "-Dlog4j.configurationFile="
STOP_TIMEOUT_S = 15.0
POLL_S = 0.1
# A dying worker writes its traceback over some milliseconds.
TRACEBACK_S = 0.5
# Read by conf/log4j2.xml.
VERBOSE_LOGGING = {
    "OFFPATH_LOG_REQUESTS": "all",
    "OFFPATH_LOG_SERVER": "debug",
    "OFFPATH_LOG_CHATTER": "NEUTRAL",
}
# A Unix socket's path has 108 bytes; the workers' are <tmp>/.ts.sock.9000.
MAX_TMP_PATH_BYTES = 80


class TorchServe:
    """A TorchServe process tree; a context manager that starts it, waits, and stops it.

    Args:
        settings: what to start.
        run_dir: folder for its configuration and logs, kept; by default a temporary one that is
            removed at the end (its logs stay when the start fails).
    """

    def __init__(self, settings: ServerSettings, run_dir: Path | None = None) -> None:
        self.settings = settings
        self._tmp_dir: Path | None = None
        self._run_dir = run_dir
        self._log_dir: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: Ports | None = None
        self._failed = False
        self._log_start = 0
        self._archives: list[tuple[str, MarFile]] = []

    def __enter__(self) -> TorchServe:
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def ports(self) -> Ports:
        """The ports in use, known once started."""
        if self._ports is None:
            raise RuntimeError("not started")
        return self._ports

    @property
    def inference_url(self) -> str:
        """Base URL of the inference API."""
        return self._url(self.ports.inference)

    @property
    def management_url(self) -> str:
        """Base URL of the management API."""
        return self._url(self.ports.management)

    @property
    def metrics_url(self) -> str:
        """Base URL of the metrics API; the metrics are at /metrics."""
        return self._url(self.ports.metrics)

    @property
    def java_pid(self) -> int:
        """Process id of Java, which leads the session of the server and its workers."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.pid

    @property
    def log_dir(self) -> Path:
        """Folder of the log files."""
        if self._log_dir is None:
            raise RuntimeError("not started")
        return self._log_dir

    @property
    def log_path(self) -> Path:
        """The log file to read first."""
        return self.log_dir / (CONSOLE_LOG if self.settings.stock else SERVER_LOG)

    def worker_pids(self) -> list[int]:
        """Process ids of the Python workers, in order of start."""
        return find_workers(self.java_pid)

    def last_words(self) -> list[str]:
        """The log lines that best tell why the server ended."""
        return find_server_failure(self._log_lines()[-MAX_LINES:])

    def is_running(self) -> bool:
        """Whether Java runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts Java; returns at once.

        Raises:
            ExpectedError: no Java, a missing archive, a taken port, an unreadable configuration.
        """
        self._check()
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self, timeout_s: float = 300.0) -> None:
        """Waits until every model has the workers that it asked for, all READY.

        Raises:
            ExpectedError: the server ended, a model or a worker failed to load (with its last
                lines from the log), or the time is up.
        """
        deadline = time.monotonic() + timeout_s
        while not self._all_ready():
            self._raise_if_failed()
            if time.monotonic() > deadline:
                last = [line.message for line in self._log_lines()[-10:]]
                self._fail(f"TorchServe is not ready after {timeout_s:.0f} s", last)
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Ends Java and its workers and removes the temporary files. Safe to call twice."""
        if self._process is not None:
            end_session(self._process.pid, STOP_TIMEOUT_S)
            self._process.wait()
        if self._tmp_dir is not None:
            keep_logs = self._failed and self._log_dir == self._tmp_dir / "logs"
            _remove_folder(self._tmp_dir, keep="logs" if keep_logs else None)

    def read_token(self, kind: str) -> str | None:
        """Returns the key for `inference`, `management` or `API`; None without token_auth."""
        if not self.settings.token_auth:
            return None
        keys = json.loads(
            (self._work_dir / "key_file.json").read_text(encoding="utf-8")
        )
        return str(keys[kind]["key"])

    def management(self) -> ManagementClient:
        """Returns a client of this server's management API."""
        return ManagementClient(
            self.management_url, token=self.read_token("management")
        )

    @property
    def archives(self) -> list[tuple[str, MarFile]]:
        """The archives, each with the name that its model is served under."""
        return self._archives

    def model_names(self) -> list[str]:
        """Names under which the models are served."""
        return [name for name, _ in self._archives]

    def _check(self) -> None:
        settings = self.settings
        if not settings.model_store.is_dir():
            raise ExpectedError(
                f"no model store at {settings.model_store}; `offpath archive --output` makes one"
            )
        self._archives = read_archives(settings)
        for kind in ("inference", "management", "metrics"):
            port = getattr(settings, f"{kind}_port")
            if port:
                option = "--port" if kind == "inference" else f"--{kind}-port"
                check_port_free(settings.host, port, option)

    @property
    def _work_dir(self) -> Path:
        if self._run_dir is not None:
            return self._run_dir
        if self._tmp_dir is None:
            raise RuntimeError("not started")
        return self._tmp_dir

    def _launch(self) -> None:
        self._tmp_dir = make_short_tmp_dir()
        self._log_dir = (self.settings.log_dir or self._work_dir / "logs").resolve()
        self._work_dir.mkdir(parents=True, exist_ok=True)
        self._log_dir.mkdir(parents=True, exist_ok=True)
        server_log = self._log_dir / SERVER_LOG
        # Yesterday's failure must not look like today's. The console log starts afresh.
        self._log_start = server_log.stat().st_size if server_log.exists() else 0
        self._ports = choose_ports(self.settings)
        properties = build_properties(self.settings, self._ports)
        config_path = self._work_dir / "effective.properties"
        config_path.write_text(format_properties(properties), encoding="utf-8")
        with open(self._log_dir / CONSOLE_LOG, "wb") as console:
            self._process = subprocess.Popen(
                self._command(config_path, properties.get("vmargs", "")),
                cwd=self._work_dir,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                # A session of its own: Ctrl-C reaches us alone, and we end the whole session.
                start_new_session=True,
            )

    def _command(self, config_path: Path, vmargs: str) -> list[str]:
        """The command line that ts/model_server.py would run."""
        ts_home = find_ts_home()
        java_options = vmargs.split()
        if not self.settings.stock:
            java_options = [o for o in java_options if not o.startswith(LOG4J_PROPERTY)]
            java_options.append(f"{LOG4J_PROPERTY}file://{CONF_DIR / 'log4j2.xml'}")
        return [
            str(find_java().executable),
            f"-Dmodel_server_home={ts_home}",
            f"-Djava.io.tmpdir={self._tmp_dir}",
            *java_options,
            *("-cp", f"{ts_home}/ts/frontend/*"),
            MAIN_CLASS,
            *("--python", sys.executable),
            *("-f", str(config_path)),
            *("-s", str(self.settings.model_store.resolve())),
            # A restored snapshot would beat every setting here.
            "-ncs",
        ]

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        # ConfigManager.java: it would replace the file that we pass.
        environment.pop("TS_CONFIG_FILE", None)
        environment.update(
            TMPDIR=str(self._tmp_dir),
            TEMP=str(self._tmp_dir),
            LOG_LOCATION=str(self._log_dir),
            METRICS_LOCATION=str(self._log_dir),
        )
        if self.settings.verbose:
            environment.update(VERBOSE_LOGGING)
        environment.update(self.settings.env)
        return environment

    def _url(self, port: int) -> str:
        host = (
            f"[{self.settings.host}]"
            if ":" in self.settings.host
            else self.settings.host
        )
        return f"http://{host}:{port}"

    def _log_lines(self) -> list[LogLine]:
        server_log = read_log(self.log_dir / SERVER_LOG, self._log_start)
        return server_log + read_log(self.log_dir / CONSOLE_LOG)

    def _all_ready(self) -> bool:
        try:
            with self.management() as management:
                for name in self.model_names():
                    statuses = management.describe(name)
                    if not all(
                        s.ready_workers >= max(1, s.min_workers) for s in statuses
                    ):
                        return False
        except (ExpectedError, OSError, KeyError, ValueError):
            # Not listening yet, or the model is not registered yet.
            return False
        return True

    def _raise_if_failed(self) -> None:
        if find_load_failure(self._log_lines()) is not None:
            time.sleep(TRACEBACK_S)
            failure = find_load_failure(self._log_lines())
            self._fail("a model failed to load", failure or [])
        if not self.is_running():
            failure = find_server_failure(self._log_lines())
            self._fail("TorchServe ended while starting", failure)

    def _fail(self, what: str, lines: list[str]) -> None:
        self._failed = True
        shown = "".join(f"\n  {line}" for line in lines)
        raise ExpectedError(f"{what}; the log is {self.log_path}; it says:{shown}")


def read_archives(settings: ServerSettings) -> list[tuple[str, MarFile]]:
    """Reads the archives to serve, each with the name that its model is served under.

    Raises:
        ExpectedError: one is missing or no archive.
    """
    archives = []
    for entry in settings.models:
        name, _, file = entry.rpartition("=")
        archive = read_mar(settings.model_store / file)
        archives.append((name or archive.model_name, archive))
    return archives


def find_ts_home() -> Path:
    """Returns the folder that holds the `ts` package, without importing it.

    Raises:
        ExpectedError: TorchServe is not installed.
    """
    spec = importlib.util.find_spec("ts")
    if spec is None or spec.origin is None:
        raise ExpectedError(
            "TorchServe is not installed; `pip install 'torchserve-offpath[serve]'`"
        )
    return Path(spec.origin).resolve().parent.parent


def make_short_tmp_dir() -> Path:
    """Makes a temporary folder whose path leaves room for a Unix socket's name."""
    base = tempfile.gettempdir()
    return Path(
        tempfile.mkdtemp(
            prefix="offpath-",
            dir=base if len(base.encode()) < MAX_TMP_PATH_BYTES else "/tmp",
        )
    )


def _remove_folder(folder: Path, keep: str | None) -> None:
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for entry in folder.iterdir():
        if entry.name == keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
