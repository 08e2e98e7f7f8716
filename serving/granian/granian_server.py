"""One Granian server: starts its supervisor, waits until its workers are READY, stops them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from offpath.archive.mar_file import read_mar, unpack_mar
from offpath.errors import MissingPackage
from offpath.handler.process.lazy_imports import is_installed
from offpath.serving.granian.plan import FIXED, ForeignSettings, Plan, WorkerPlan
from offpath.serving.granian.reports import Reports, find_page
from offpath.serving.process.ports import is_loopback
from offpath.serving.server.plan import ServePlan
from offpath.serving.server.served_model import WORKER, name_socket
from offpath.serving.server.server import Server
from offpath.serving.server.server_settings import LOOPBACK, socket_path
from offpath.serving.server.status_pages import StatusPages

MAX_LOG_BYTES = 20 << 20
# Bodies that all workers may hold; beyond it requests get 503.
MAX_BODY_BYTES = 1 << 30


class GranianServer(Server):
    """A supervisor with its workers, which warm up before they are READY."""

    product = "Granian"
    log_name = "granian.log"

    def __init__(self, plan: ServePlan) -> None:
        self._reports = Reports(plan.models, socket.gethostname())
        # To the supervisor, until it has its plan.
        self._waiting: socket.socket | None = None
        super().__init__(plan)

    def links(self) -> dict[str, Path]:
        links = super().links()
        listener = links.pop("inference.sock", None)
        if listener is not None:
            numbers = [number for model in self.plan.models for number in model.slots]
            links |= {name: listener.with_name(name) for name in map(name_socket, numbers)}
        return links

    def list_sockets(self) -> list[Path]:
        # The path of a worker may lead nowhere, but not the second name of its socket.
        links = self.links().values()
        return [Path(f"{p}{FIXED}") if p.name.startswith(WORKER) else p for p in links]

    def rotate_log(self) -> None:
        log = self.log_path
        if not log.exists() or log.stat().st_size <= MAX_LOG_BYTES:
            return
        # A full disk keeps no copy, and then gets room.
        with contextlib.suppress(OSError):
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        # The supervisor and the workers append, so they go on at the new end.
        os.truncate(log, 0)
        self._log_start = 0

    def worker_pids(self) -> list[int]:
        return self._reports.list_pids()

    def wait_until_ready(self, timeout_s: float = 300.0) -> None:
        if self._waiting is not None:
            # The supervisor imports torch while the archives are unpacked.
            plan = self._make_plan().to_json()
            with contextlib.suppress(ConnectionError):  # it has ended, and its log says why
                self._waiting.sendall(plan)
            self._reports.follow(self._waiting)
            self._waiting = None
        self._wait_until(self._reports.are_all_ready, timeout_s)

    def drain(self, timeout_s: float) -> bool:
        """Stops accepting and waits for the answers in flight; False if the time was up first."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
        return True

    def _launch(self) -> None:
        """Starts the supervisor, which waits for its plan."""
        if not (is_installed("granian") and is_installed("uvloop")):
            raise MissingPackage("Granian", "granian")
        settings, folder = self.settings, self._folder
        if not settings.unix_sockets:
            self.plan.check_needs_no_door()
        self._waiting, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with open(self.log_path, "ab") as log, theirs:
            program = [sys.executable, str(Path(__file__).with_name("supervisor.py"))]
            store = ["--model-store", str(settings.model_store.resolve())]
            # Only workers listen at the port, and `check` must find the server without one too.
            port = [] if settings.unix_sockets else ["--port", str(self.ports.inference)]
            run = ["--run", str(folder), *port, "--reports", str(theirs.fileno())]
            # OMP_WAIT_POLICY: see torchserve/launch.py
            environment = {"OMP_WAIT_POLICY": "passive", **os.environ, **settings.env}
            pass_fds = [theirs.fileno()]
            self._start_process(program + store + run, environment, log, pass_fds=pass_fds)
        self._pages = StatusPages(partial(find_page, self._reports))
        for kind in ("management", "metrics"):
            self._pages.open_socket(socket_path(folder, kind))
        if not settings.unix_sockets:
            self._pages.open_port(settings.host, self.ports.metrics)
        if settings.management_port is not None:
            self._pages.open_port(LOOPBACK, self.ports.management, is_private=True)

    def _raise_if_failed(self) -> None:
        if self._reports.failure is not None:
            self._fail_to_load(*self._reports.failure)
        super()._raise_if_failed()

    def _make_plan(self) -> Plan:
        """Unpacks the archives and returns what the supervisor has to know."""
        settings, properties = self.settings, self.plan.properties
        workers: list[WorkerPlan] = []
        for model in self.plan.models:
            unpacked = self._folder / f"model-{model.first_slot}"
            changed_ns = os.stat(model.archive).st_mtime_ns
            unpack_mar(read_mar(Path(model.archive)), unpacked)
            queue = model.share_queue(self.plan.queue)
            # What a stranger wrote need not fit into JSON.
            model = replace(model, settings=replace(model.settings, asked={}))
            for number in model.slots:
                path = str(self._folder / name_socket(number)) if settings.unix_sockets else None
                workers.append(WorkerPlan(model, number, str(unpacked), changed_ns, path, queue))
        is_guarded = is_loopback(settings.host) and not settings.unix_sockets
        # Our own file is made for our own handler.
        given = properties.given if settings.config is not None else {}
        envelope = os.environ.get("TS_SERVICE_ENVELOPE", given.get("service_envelope", ""))
        decodes = given.get("decode_input_request", "true") == "true"
        return Plan(
            tuple(workers),
            settings.host,
            self.ports.inference,
            has_door=settings.unix_sockets,
            max_body_bytes=properties.max_request_size,
            max_bytes=MAX_BODY_BYTES // max(1, len(workers)),
            busy_status=settings.busy_status,
            foreign=ForeignSettings(envelope, decodes, given.get("metrics_config", "")),
            names=tuple(map(str.lower, settings.allow_host)) if is_guarded else None,
        )
