"""Checks a running TorchServe, whoever started it.

The check asks the management API and /metrics, and reads the process where it runs on this host.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from offpath.errors import ExpectedError
from offpath.handler.config import INPUT_SETTINGS
from offpath.handler.prediction_log.sink_file import make_sink_folder_name, read_last_error
from offpath.handler.process.foreign_server import DECLARED_METRIC
from offpath.serving.check.files import METRICS_CURE, check_config
from offpath.serving.finding import Finding, grade, lost, ok, wrong
from offpath.serving.server.in_force import ENGINE_CURE, LOG, find_differences, find_log_problem
from offpath.serving.server.management import ManagementClient, ModelStatus, open_http
from offpath.serving.server.plan import ServePlan, plan_server
from offpath.serving.server.properties import PORTS
from offpath.serving.server.server_settings import ServerSettings
from offpath.serving.servers_here import FoundServer, find_servers
from offpath.serving.torchserve.launch import read_java_major

AREA = "server"
# Workers report their counters about once per second.
METRICS_WAIT_S = 3.0
METRICS_POLL_S = 0.2
# Settings that a worker reports, beyond those with findings of their own.
SETTINGS = ("max_batch", "cuda_graphs", "classes", "activation", "threshold", *INPUT_SETTINGS)
MIN_SPOOL_BYTES = 1 << 30
DROPPED = re.compile(r"^offpath_log_dropped_total\{.*\} (\S+)$", re.MULTILINE)
SICK_WORKERS = re.compile(r"^offpath_sick_workers_total\{.*\} (\S+)$", re.MULTILINE)


def check_server(url: str, token: str | None = None) -> Iterator[Finding]:
    """Yields findings about the server with this address: `http://...` or `unix:PATH`.

    For a server on this host it may be any address of the server or of its door, otherwise it must
    be that of its management API.
    """
    # While one server replaces another behind a door, the newer one.
    process = next((one for one in reversed(find_servers()) if one.answers(url)), None)
    parts, log = urlsplit(url), "torchserve.log or granian.log"
    # TorchServe's default is the port after that of its management API.
    port = (parts.port or 8081) + 1
    metrics = f"{parts.scheme}://{parts.hostname}:{port}" if parts.hostname else ""
    if process is not None:
        url, metrics = process.address("management"), process.address("metrics")
        log = process.log_name
        yield from _check_process(process)
    has_ours = False
    with ManagementClient(url, token) as management:
        try:
            models = management.list_models()
        except ExpectedError as error:
            cure = "--url with the address that `offpath serve` prints as management, and --token"
            if isinstance(error.__cause__, httpx.HTTPError):
                cure = f"wait if the server is starting; otherwise read the end of {log}"
            yield wrong(AREA, "management", str(error), cure)
            return
        yield ok(AREA, "models", ", ".join(models) or "none")
        for name in models:
            for status in management.describe(name):
                if status.ready_workers:  # otherwise nobody would answer
                    try:
                        status = management.describe_worker(name, status.model_version)
                    except ExpectedError as error:
                        area, cure = f"{name} {status.model_version}", f"read the end of {log}"
                        yield wrong(area, "workers", f"one ended while it was asked: {error}", cure)
                        continue
                # Versions of a model may differ in their settings.
                yield from check_model(status, plan_again(process, status))
                has_ours |= status.described.get("handler") == "offpath"
    if has_ours and metrics:
        yield from check_metrics(metrics, log)


def check_model(status: ModelStatus, plan: ServePlan | None) -> Iterator[Finding]:
    """Yields findings about one model in force, compared with its plan where that is known."""
    area = f"{status.model_name} {status.model_version}"
    ready, wanted = status.ready_workers, status.min_workers
    if ready < max(1, wanted):
        cure = "read in the server's log why the worker does not start"
        yield wrong(area, "workers", f"{ready} of {wanted} are READY", cure)
    else:
        yield ok(area, "workers", f"{ready}, all READY")
    yield from _check_batches(area, status, plan)
    if status.described.get("handler") == "offpath":
        yield from _check_engine(area, status)
        yield from _check_prediction_log(area, status)
    elif status.ready_workers:  # otherwise none can say what its handler is
        yield lost(area, "handler", "not offpath's", "offpath archive --from OLD.mar")


def _check_batches(area: str, status: ModelStatus, plan: ServePlan | None) -> Iterator[Finding]:
    differences: list[Finding] = []
    if plan is not None:
        differences = list(find_differences(plan.models[0].settings, status))
        yield from (replace(note, area=area) for note in plan.notes if note.subject == "labels")
    yield from differences
    found = f"batch {status.batch_size}, delay {status.max_batch_delay_ms} ms"
    if status.batch_size == 1:
        cure = "offpath archive --batch-size 8 ..., or the register API's batch_size=8"
        yield lost(area, "batches", f"{found}; requests are never batched", cure)
    elif not differences:
        yield ok(area, "batches", found)
    if status.queue_left is not None:
        yield ok(area, "queue", f"{status.queue_left} more requests may wait")


def _check_engine(area: str, status: ModelStatus) -> Iterator[Finding]:
    described = status.described
    yield ok(area, "device", f"{status.device}, {status.engine}")
    for reason in described.get("engines_lost", []):
        yield lost(area, "engine not used", reason, ENGINE_CURE)
    found = f"{described.get('threads')} per worker, decode {described.get('decode')}"
    yield ok(area, "threads", found)
    settings = [f"{key} {described[key]}" for key in SETTINGS if key in described]
    yield ok(area, "handler settings", ", ".join(settings))


def _check_prediction_log(area: str, status: ModelStatus) -> Iterator[Finding]:
    uri = status.described.get("prediction_log", "off")
    if uri == "off":
        yield ok(area, LOG, "off")
        return
    yield from find_log_problem(status)
    spool = Path(status.described.get("spool", "/"))
    folder = next((one for one in (spool, *spool.parents) if one.is_dir()), Path("/"))
    free = shutil.disk_usage(folder).free
    found = f"{uri}, spool {spool}, {free / 2**30:.1f} GiB free"
    cure = "OFFPATH_SPOOL_DIR=/another/disk, or prediction_log.spool_max_bytes"
    loss = found if free < MIN_SPOOL_BYTES else None
    yield grade(area, LOG, found, loss, cure)
    try:
        error = read_last_error(spool / make_sink_folder_name(uri))
    except (OSError, ValueError):  # another user's spool, or one on another host
        return
    if error:
        why = f"{error.get('time')}: {error.get('message')}"
        found = f"the last delivery failed ({why}); the records wait in the spool"
        yield lost(area, LOG, found, f"offpath logs status --spool {spool}")


def _check_process(process: FoundServer) -> Iterator[Finding]:
    if process.granian is not None:
        yield ok(AREA, "granian", version("granian"))
        return
    command, config, properties = process.command, process.config, process.properties()
    yield ok(AREA, "java", f"{read_java_major(Path(command[0])) or 'unknown'} at {command[0]}")
    if not {"-ncs", "--no-config-snapshots"} & set(command):
        found = "enabled; a snapshot of an earlier run wins over every file"
        yield lost(AREA, "snapshots", found, "torchserve --start --ncs ...")
    has_file = config is not None and config.is_file()
    loss = None if has_file else "none; TorchServe uses its defaults"
    yield grade(AREA, "config.properties", config, loss, "torchserve --ts-config FILE ...")
    yield from check_config(properties, " ".join(command), AREA)


def plan_again(process: FoundServer | None, status: ModelStatus) -> ServePlan | None:
    """Plans the server with one of its models alone; None where its archive is not known."""
    if process is None or process.model_store is None:
        return None
    given = {key: text for key, text in process.properties().items() if key not in PORTS}
    kind = "torchserve" if process.granian is None else "granian"
    settings = ServerSettings(
        process.model_store,
        (f"{status.model_name}={status.model_url}",),
        server=kind,
        # Somebody else's properties may have what `offpath serve` refuses in a file.
        stock=True,
        overrides=given,
    )
    try:
        return plan_server(settings)
    except ExpectedError:  # registered from another place
        return None


def check_metrics(address: str, log: str) -> Iterator[Finding]:
    """Looks for offpath's metrics: describing the workers has just counted as a request."""
    url, text = f"{address}/metrics", ""
    deadline = time.monotonic() + METRICS_WAIT_S
    try:
        with open_http(address) as http:
            while DECLARED_METRIC not in (text := http.get("/metrics").text):
                if time.monotonic() > deadline:
                    yield lost(AREA, "metrics", f"none of offpath's at {url}", METRICS_CURE)
                    return
                time.sleep(METRICS_POLL_S)
    except httpx.HTTPError as error:
        yield lost(AREA, "metrics", f"{url}: {error}", "metrics_mode=prometheus")
        return
    yield ok(AREA, "metrics", f"offpath's metrics are at {url}")
    dropped, ended = (int(sum(map(float, one.findall(text)))) for one in (DROPPED, SICK_WORKERS))
    if dropped:
        found = f"{dropped} were dropped since the start"
        yield wrong(AREA, "records of the log", found, f"{log} says why: `offpath warns: `")
    if ended:
        found = f"{ended} times since the start, a worker ended with a broken model"
        cure = f"{log} says why: `this worker must be replaced`"
        yield lost(AREA, "broken models", found, cure)
