"""Checks a running TorchServe, whoever started it.

The check asks the management API and /metrics, and reads the process where it runs on this host.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from offpath.archive.mar_file import MarFile, read_mar
from offpath.handler.config import INPUT_SETTINGS
from offpath.handler.errors import ExpectedError
from offpath.handler.prediction_log.sink_file import (
    make_sink_folder_name,
    read_last_error,
)
from offpath.handler.process.foreign_server import DECLARED_METRIC, MAIN_CLASS
from offpath.serving.check.archive_file import check_labels
from offpath.serving.check.config_file import METRICS_CURE, check_config
from offpath.serving.finding import Finding, lost, ok, wrong
from offpath.serving.front.running_door import find_doors, is_port_here, see_path
from offpath.serving.torchserve.in_force import ENGINE_CURE, find_differences
from offpath.serving.torchserve.java import read_java_major
from offpath.serving.torchserve.management import UNIX, ManagementClient, ModelStatus
from offpath.serving.torchserve.properties import DEFAULTS, read_properties
from offpath.serving.torchserve.server_settings import LEFT_OUT

AREA = "server"
# Workers report their counters about once per second.
METRICS_WAIT_S = 3.0
METRICS_POLL_S = 0.2
# Settings that a worker reports, beyond those with findings of their own.
SETTINGS = (
    *("max_batch", "cuda_graphs", "classes", "activation", "threshold"),
    *INPUT_SETTINGS,
)
LEAST_SPOOL_BYTES = 1 << 30
IS_OURS = re.compile(r"\boffpath (serve|demo)\b")
SICK_WORKERS = re.compile(r"^offpath_sick_workers_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class ServerProcess:
    """TorchServe's Java, or Granian's supervisor, on this host.

    Attributes:
        command: command line.
        folder: working folder.
        door: address at which a front door before it listens; empty without a door.
        pid: process id; 0 if unknown.
        ports: TCP ports at which the server, its door or `offpath serve` listen.
    """

    command: list[str]
    folder: Path
    door: str = ""
    pid: int = 0
    ports: frozenset[int] = frozenset()

    @property
    def config(self) -> Path | None:
        """Properties file that the server was started with."""
        return self._path_after("-f", "--ts-config-file")

    @property
    def model_store(self) -> Path | None:
        """Folder of its archives."""
        return self._path_after("-s", "--model-store")

    @property
    def granian(self) -> Path | None:
        """Run folder of Granian's supervisor; None for TorchServe."""
        return self._path_after("--run")

    @property
    def log_name(self) -> str:
        """Name of the log to read first."""
        return "torchserve.log" if self.granian is None else "granian.log"

    def properties(self) -> dict[str, str]:
        """Returns the content of the properties file; empty without a file."""
        config = self.config
        return read_properties(config) if config and config.is_file() else {}

    def address(self, kind: str) -> str:
        """Returns the address of `inference`, `management` or `metrics` on this host."""
        if self.granian is not None:
            # Answers /metrics too, also where Prometheus asks a port.
            name = "inference" if kind == "inference" else "management"
            return f"{UNIX}{self.granian / name}.sock"
        key = f"{kind}_address"
        address = self.properties().get(key, DEFAULTS[key])
        if address.startswith(UNIX):
            return f"{UNIX}{see_path(Path(address.removeprefix(UNIX)), self.pid)}"
        return address.replace("//0.0.0.0", "//127.0.0.1")

    def answers(self, url: str) -> bool:
        """Tells whether an address of any kind, such as `offpath serve` prints, leads to it."""
        if not url.startswith(UNIX):
            return is_port_here(url, self.ports)
        socket = see_path(Path(url.removeprefix(UNIX)), self.pid)
        if os.path.islink(socket):  # the door's
            socket = see_path(Path(os.readlink(socket)), self.pid)
        return f"{UNIX}{socket}" == self.address("management")

    def _path_after(self, *options: str) -> Path | None:
        for option, value in zip(self.command, self.command[1:]):
            if option in options:
                return see_path(self.folder / value, self.pid)
        return None


def find_servers() -> list[ServerProcess]:
    """Returns the servers of this host that this user can see."""
    found = []
    doors = {door.parent: f"front door at {door.address}" for door in find_doors()}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if MAIN_CLASS in command or _is_supervisor(process, command):
                door, ports = doors.get(process.ppid(), ""), _list_ports(process)
                folder = Path(process.cwd())
                found.append(ServerProcess(command, folder, door, process.pid, ports))
        except psutil.Error:
            continue
    return found


def _is_supervisor(process: psutil.Process, command: list[str]) -> bool:
    """Tells Granian's supervisor from its workers, which are forked with the same command line."""
    if not any(part.endswith("granian/supervisor.py") for part in command[1:2]):
        return False
    parent = process.parent()
    return parent is None or parent.cmdline() != command


def _list_ports(server: psutil.Process) -> frozenset[int]:
    """Returns the TCP ports at which a server, its door or its `offpath serve` listen."""
    family = [server, *server.children(recursive=True)]
    parent = server.parent()
    # A shell or systemd has other children too.
    if parent is not None and IS_OURS.search(" ".join(parent.cmdline())):
        family += [parent, *parent.children()]
    ports = set()
    for one in family:
        with contextlib.suppress(psutil.Error):
            for connection in one.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    ports.add(connection.laddr.port)
    return frozenset(ports)


def check_server(url: str, token: str | None = None) -> Iterator[Finding]:
    """Yields findings about the server with this address: `http://...` or `unix:PATH`.

    For a server on this host it may be any address of the server or of its door, otherwise it must
    be that of its management API.
    """
    # While one server replaces another behind a door, the newer one.
    process = next((p for p in reversed(find_servers()) if p.answers(url)), None)
    if process is not None:
        url = process.address("management")
        yield from _check_process(process)
    log = "torchserve.log or granian.log" if process is None else process.log_name
    with ManagementClient(url, token) as management:
        try:
            models = management.list_models()
        except ExpectedError as error:
            yield wrong(AREA, "management", str(error), _find_cure(error, log))
            return
        yield ok(AREA, "models", ", ".join(models) or "none")
        has_ours = False
        for name, archive_url in models.items():
            for status in management.describe(name):
                if status.ready_workers:  # otherwise nobody would answer
                    version = status.model_version
                    status = management.describe_worker(name, version)
                archive = _find_archive(process, archive_url)
                yield from check_model(status, archive)
                has_ours |= status.described.get("handler") == "offpath"
    metrics = _metrics_address(url, process)
    if has_ours and metrics is not None:
        yield from _check_metrics(metrics, log)


def _find_cure(error: ExpectedError, log: str) -> str:
    """Returns the cure for a management API that does not list its models."""
    if isinstance(error.__cause__, httpx.HTTPError):
        return f"wait if the server is starting; otherwise read the end of {log}"
    return "--url with the address that `offpath serve` prints as management, and --token"


def check_model(status: ModelStatus, archive: MarFile | None) -> Iterator[Finding]:
    """Yields findings about one model in force, compared with its archive where that is known."""
    area = f"{status.model_name} {status.model_version}"
    ready, wanted = status.ready_workers, status.min_workers
    if ready < max(1, wanted):
        cure = "read in the server's log why the worker does not start"
        yield wrong(area, "workers", f"{ready} of {wanted} are READY", cure)
    else:
        yield ok(area, "workers", f"{ready}, all READY")
    differences = [] if archive is None else list(find_differences(archive, status))
    yield from differences
    if archive is not None:
        yield from check_labels(area, archive)
    found = f"batch {status.batch_size}, delay {status.max_batch_delay_ms} ms"
    if status.batch_size == 1:
        cure = "offpath archive --batch-size 8 ..., or the register API's batch_size=8"
        yield lost(area, "batches", f"{found}; requests are never batched", cure)
    elif not differences:
        yield ok(area, "batches", found)
    if status.queue_left is not None:
        yield ok(area, "queue", f"{status.queue_left} more requests may wait")
    if not ready:
        return  # no worker can say what its handler is
    if status.described.get("handler") != "offpath":
        yield lost(area, "handler", "not offpath's", "offpath archive --from OLD.mar")
        return
    yield from _check_worker(area, status)


def _check_worker(area: str, status: ModelStatus) -> Iterator[Finding]:
    described = status.described
    yield ok(area, "device", f"{status.device}, {status.engine}")
    engines_lost = described.get("engines_lost", [])
    for reason in described.get("engines_refused", []):
        if reason in engines_lost:
            yield lost(area, "engine not used", reason, ENGINE_CURE)
        else:
            yield ok(area, "engine not used", reason)
    yield ok(
        area,
        "threads",
        f"{described.get('threads')} per worker, decode {described.get('decode')}",
    )
    settings = {key: described[key] for key in SETTINGS if key in described}
    found = ", ".join(f"{key} {value}" for key, value in settings.items())
    yield ok(area, "handler settings", found)
    uri, spool = described.get("prediction_log", "off"), Path(described.get("spool", "/"))
    if uri == "off":
        yield ok(area, "prediction log", "off")
        return
    folder = next((one for one in (spool, *spool.parents) if one.is_dir()), Path("/"))
    free = shutil.disk_usage(folder).free
    found = f"{uri}, spool {spool}, {free / 2**30:.1f} GiB free"
    if free < LEAST_SPOOL_BYTES:
        cure = "OFFPATH_SPOOL_DIR=/another/disk, or prediction_log.spool_max_bytes"
        yield lost(area, "prediction log", found, cure)
    else:
        yield ok(area, "prediction log", found)
    error = _last_delivery_error(spool, uri)
    if error is not None:
        cure = f"offpath logs status --spool {spool}"
        found = f"the last delivery failed ({error}); the records wait in the spool"
        yield lost(area, "prediction log", found, cure)


def _last_delivery_error(spool: Path, uri: str) -> str | None:
    """Returns when and why deliveries last failed; None if the last one succeeded."""
    try:
        error = read_last_error(spool / make_sink_folder_name(uri))
    except (OSError, ValueError):  # another user's spool, or one on another host
        return None
    return f"{error.get('time')}: {error.get('message')}" if error else None


def _check_process(process: ServerProcess) -> Iterator[Finding]:
    if process.granian is not None:
        yield ok(AREA, "granian", version("granian"))
        return
    major = read_java_major(Path(process.command[0]))
    yield ok(AREA, "java", f"{major or 'unknown'} at {process.command[0]}")
    if not {"-ncs", "--no-config-snapshots"} & set(process.command):
        found = "enabled; a snapshot of an earlier run wins over every file"
        yield lost(AREA, "snapshots", found, "torchserve --start --ncs ...")
    config = process.config
    if config is None or not config.is_file():
        found = "none; TorchServe uses its defaults"
        yield lost(AREA, "config.properties", found, "torchserve --ts-config FILE ...")
    else:
        yield ok(AREA, "config.properties", config)
    properties = process.properties()
    if LEFT_OUT in properties:
        found = f"{properties[LEFT_OUT]}: could not be loaded at the start (--keep-going)"
        yield wrong(AREA, "archives", found, "offpath check FILE.mar, or torchserve.log")
    yield from check_config(properties, " ".join(process.command), AREA)


def _find_archive(process: ServerProcess | None, url: str) -> MarFile | None:
    if process is None or process.model_store is None:
        return None
    try:
        return read_mar(process.model_store / url)
    except ExpectedError:  # registered from another place
        return None


def _metrics_address(url: str, process: ServerProcess | None) -> str | None:
    """Returns the base URL of the metrics, or `unix:PATH`."""
    if process is not None:
        return process.address("metrics")
    parts = urlsplit(url)
    port = (parts.port or 8081) + 1
    return f"{parts.scheme}://{parts.hostname}:{port}" if parts.hostname else None


def _read_metrics(address: str) -> str:
    socket = address.removeprefix(UNIX)
    is_unix = socket != address
    base = "http://localhost" if is_unix else address
    transport = httpx.HTTPTransport(uds=socket) if is_unix else None
    with httpx.Client(trust_env=False, transport=transport) as http:
        return http.get(f"{base}/metrics").text


def _check_metrics(address: str, log: str) -> Iterator[Finding]:
    """Looks for offpath's metrics: describing the workers has just counted as a request."""
    url = f"{address}/metrics"
    deadline = time.monotonic() + METRICS_WAIT_S
    while True:
        try:
            text = _read_metrics(address)
        except httpx.HTTPError as error:
            yield lost(AREA, "metrics", f"{url}: {error}", "metrics_mode=prometheus")
            return
        if DECLARED_METRIC in text:
            yield ok(AREA, "metrics", f"offpath's metrics are at {url}")
            break
        if time.monotonic() > deadline:
            found = f"none of offpath's at {url}"
            yield lost(AREA, "metrics", found, METRICS_CURE)
            return
        time.sleep(METRICS_POLL_S)
    ended = int(sum(float(count) for count in SICK_WORKERS.findall(text)))
    if ended:
        found = f"{ended} times since the start, a worker ended with a broken model"
        cure = f"{log} says why: `this worker must be replaced`"
        yield lost(AREA, "broken models", found, cure)
