"""One Granian server: starts its supervisor, waits until its workers are READY, stops them.

It has the methods of `TorchServe` that sessions and the front door use.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from offpath.archive.mar_file import MarFile, read_archives, read_mar, unpack_mar
from offpath.archive.photographs import BUNDLED
from offpath.handler.errors import ExpectedError, MissingPackage, WrongOption
from offpath.handler.process.lazy_imports import is_installed
from offpath.handler.process.warmup import WARM_UP_VARIABLE
from offpath.serving.granian.reports import Reports
from offpath.serving.granian.slots import ServedModel, plan_models
from offpath.serving.granian.status_pages import StatusPages
from offpath.serving.process.guard import Guard
from offpath.serving.process.processes import end_session
from offpath.serving.torchserve.key_file import KeyFile
from offpath.serving.torchserve.launch import make_short_tmp_dir, remove_folder
from offpath.serving.torchserve.management import ManagementClient
from offpath.serving.torchserve.properties import DEFAULTS
from offpath.serving.torchserve.server_log import (
    MAX_LINES,
    find_server_failure,
    read_log,
)
from offpath.serving.torchserve.server_settings import (
    Ports,
    ServerSettings,
    check_startable,
    choose_ports,
    read_config,
)

SERVER_LOG = "granian.log"
PHOTOGRAPH = BUNDLED / "espresso.jpg"
STOP_TIMEOUT_S = 15.0
POLL_S = 0.02
# Bodies that all workers may hold; beyond it requests get 503.
MOST_BODY_BYTES = 1 << 30


class GranianServer:
    """A supervisor with its workers. The run folder is removed at the end."""

    product = "Granian"

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.warm_up_key = secrets.token_hex(16)
        self.archives: list[tuple[str, MarFile]] = []
        self._models: list[ServedModel] = []
        self._tmp_dir: Path | None = None
        self._ports: Ports | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._reports = Reports([], "")
        self._pages = StatusPages(self._reports)
        self._log_start = 0
        self._failed = False

    def __enter__(self) -> GranianServer:
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
        """The ports in use."""
        if self._ports is None:
            raise RuntimeError("the server is not started")
        return self._ports

    @property
    def run_dir(self) -> Path:
        """Folder of its sockets and unpacked archives."""
        if self._tmp_dir is None:
            raise RuntimeError("the server is not started")
        return self._tmp_dir

    @property
    def inference_url(self) -> str:
        """Base URL of predictions."""
        return f"http://{self.settings.host}:{self.ports.inference}"

    @property
    def management_url(self) -> str:
        """`unix:PATH` of the read-only management calls."""
        return f"unix:{self.run_dir / 'management.sock'}"

    @property
    def metrics_url(self) -> str:
        """Base URL of /metrics."""
        return f"http://{self.settings.host}:{self.ports.metrics}"

    @property
    def log_dir(self) -> Path:
        """Folder of the log."""
        return (self.settings.log_dir or self.run_dir / "logs").resolve()

    @property
    def log_path(self) -> Path:
        """The log of the supervisor and its workers."""
        return self.log_dir / SERVER_LOG

    def links(self) -> dict[str, Path]:
        """Returns the sockets that a front door links to, by the name of the link."""
        names = ["management.sock", "metrics.sock"]
        names += [f"worker-{n}.sock" for model in self._models for n in model.slots]
        return {name: self.run_dir / name for name in names}

    @property
    def supervisor_pid(self) -> int:
        """Process id of the supervisor, from which the workers are forked."""
        if self._process is None:
            raise RuntimeError("the server is not started")
        return self._process.pid

    def worker_pids(self) -> list[int]:
        """Returns the process ids of the workers, in order of start."""
        if self._process is None:
            return []
        children = psutil.Process(self._process.pid).children()
        return [child.pid for child in sorted(children, key=lambda c: c.create_time())]

    def model_names(self) -> list[str]:
        """Returns the names under which the models are served."""
        return [name for name, _ in self.archives]

    def keys(self) -> KeyFile | None:
        """Returns None: only TorchServe has keys."""
        return None

    def read_token(self, kind: str) -> str | None:
        """Returns None: only TorchServe has tokens."""
        return None

    def management(self) -> ManagementClient:
        """Returns a client of the management calls."""
        return ManagementClient(self.management_url)

    def is_running(self) -> bool:
        """Tells whether the supervisor runs."""
        return self._process is not None and self._process.poll() is None

    def last_words(self) -> list[str]:
        """Returns the log lines that best tell why the server ended."""
        lines = read_log(self.log_path, self._log_start)
        return find_server_failure(lines[-MAX_LINES:])

    def start(self) -> None:
        """Starts the supervisor, which imports torch while the archives are unpacked.

        Raises:
            ExpectedError: Granian is not installed, an archive is missing or not for it, or a port
                is taken.
        """
        if not (is_installed("granian") and is_installed("uvloop")):
            raise MissingPackage("Granian", "granian")
        check_startable(self.settings)
        self.archives = read_archives(self.settings.model_store, self.settings.models)
        self._models = plan_models(self.archives)
        if not self.settings.unix_sockets and len(self._models) > 1:
            raise WrongOption(
                "without a front door Granian serves one model, because the kernel and not the "
                "path chooses the worker; add --front, or name one archive"
            )
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self, timeout_s: float = 300.0) -> None:
        """Waits until every worker is READY.

        Raises:
            ExpectedError: a model failed to load, or the time is up.
        """
        deadline = time.monotonic() + timeout_s
        while not self._reports.are_all_ready():
            what = self._reports.failure
            if what is not None:
                what = f"a model failed to load: {what}"
            elif not self.is_running():
                what = "Granian ended while starting: " + "\n  ".join(self.last_words())
            elif time.monotonic() > deadline:
                what = f"Granian is not ready after {timeout_s:.0f} s"
            if what is not None:
                self._failed = True
                raise ExpectedError(f"{what}\n  The log {self.log_path} has more.")
            time.sleep(POLL_S)

    def drain(self, timeout_s: float) -> bool:
        """Stops accepting, and waits until the requests in flight are answered.

        Returns:
            False if the time was up first.
        """
        if self._process is not None and self.is_running():
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
        return True

    def stop(self) -> None:
        """Ends the supervisor and the workers, and removes the run folder. Safe to call twice."""
        if self._process is not None:
            end_session(self._process.pid, STOP_TIMEOUT_S)
            self._process.wait()
        if self._guard is not None:
            self._guard.release()
        self._pages.close()
        if self._tmp_dir is not None:
            keep_logs = self._failed and self.settings.log_dir is None
            remove_folder(self._tmp_dir, keep="logs" if keep_logs else None)

    def _launch(self) -> None:
        self._tmp_dir = make_short_tmp_dir()
        self.log_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._ports = choose_ports(self.settings)
        reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with open(self.log_path, "ab") as log, theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, str(Path(__file__).with_name("supervisor.py"))),
                    *("--model-store", str(self.settings.model_store.resolve())),
                    *("--run", str(self._tmp_dir)),
                    *("--reports", str(theirs.fileno())),
                ],
                env={
                    "OMP_WAIT_POLICY": "passive",  # see torchserve/launch.py
                    **os.environ,
                    **self.settings.env,
                    WARM_UP_VARIABLE: self.warm_up_key,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                # Ctrl-C then reaches only this process, which ends the whole session.
                start_new_session=True,
            )
        self._guard = Guard(self._process.pid, self._tmp_dir)
        self._reports = Reports(self._models, socket.gethostname())
        self._pages = StatusPages(self._reports)
        for name in ("management.sock", "metrics.sock"):
            self._pages.open_socket(self._tmp_dir / name)
        if not self.settings.unix_sockets:
            self._pages.open_port(self.settings.host, self.ports.metrics)
        plan = self._make_plan(self._tmp_dir)
        reports.sendall(plan)
        self._reports.follow(reports)

    def _make_plan(self, folder: Path) -> bytes:
        """Unpacks the archives and returns what the supervisor has to know."""
        settings = self.settings
        properties = {**DEFAULTS, **read_config(settings), **settings.overrides}
        slots = []
        for model in self._models:
            unpacked = folder / f"model-{model.first_slot}"
            unpack_mar(read_mar(Path(model.archive)), unpacked)
            for number in model.slots:
                address: object = str(folder / f"worker-{number}.sock")
                if not settings.unix_sockets:
                    address = [settings.host, self.ports.inference]
                slots.append(
                    {
                        "number": number,
                        "name": model.name,
                        "version": model.version,
                        "folder": str(unpacked),
                        "settings": model.settings,
                        "device": model.device,
                        "listen": address,
                        "queue": model.share_queue(int(properties["job_queue_size"])),
                    }
                )
        plan = {
            "slots": slots,
            "max_body_bytes": int(properties["max_request_size"]),
            "most_bytes": MOST_BODY_BYTES // max(1, len(slots)),
            "photograph": str(PHOTOGRAPH),
            "warm_up_key": self.warm_up_key,
        }
        return json.dumps(plan).encode()
