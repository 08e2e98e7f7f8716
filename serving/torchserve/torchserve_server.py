"""TorchServe: Java with its Python workers."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from offpath.archive.photographs import SAMPLE
from offpath.handler.wire_names import WARM_UP_HEADER, WARM_UP_VARIABLE
from offpath.serving.process.in_flight import wait_until_answered
from offpath.serving.process.processes import find_workers
from offpath.serving.server.management import UNIX, ModelStatus, open_http
from offpath.serving.server.plan import ServePlan
from offpath.serving.server.server import Server
from offpath.serving.server.server_log import MAX_LINES, LogLine, has_exception, read_log
from offpath.serving.server.server_settings import LOOPBACK
from offpath.serving.server.status_pages import StatusPages
from offpath.serving.server.worker_counts import WorkerCounts
from offpath.serving.torchserve.launch import (
    build_properties,
    format_properties,
    make_command,
    make_environment,
)

# ts/model_service_worker.py, WorkerThread.java. The last message follows any death of a worker.
WORKER_FAILURE = re.compile(
    r"Failed to load model|Load model \S+ (cpu|cuda) OOM|Backend worker process died"
    r"|Backend worker did not receive connection|Retry worker: "
)
# ModelServer.java refused the archive itself.
MODEL_REFUSED = re.compile(r"Failed to load model: ")
# The first line that a worker writes: the lines after it belong to the next attempt.
WORKER_START = "s_name_part0="
# The output of Java, which has everything with stock logging.
CONSOLE_LOG = "console.log"
# A dying worker takes some milliseconds to write its traceback.
TRACEBACK_S = 0.5
# On a busy machine, Java can stop reading a worker's output before its traceback. A second later it
# starts the worker again.
NEXT_ATTEMPT_S = 6.0
# After this many, the first request after READY costs the same as later ones.
WARM_UP_PER_WORKER = 20
WARM_UP_CLIENTS = 8
WARM_UP_TIMEOUT_S = 60.0
# Prometheus waits for ten seconds.
PAGE_TIMEOUT_S = 4.0


def find_load_failure(lines: list[LogLine]) -> tuple[str, list[str]] | None:
    """Finds why a model or a worker did not load: the first failure with an exception, or any.

    Returns:
        NAME_VERSION of the model, or its archive's file if TorchServe itself refused that, and the
        lines that tell why; None if none failed.
    """
    first: tuple[str, list[str]] | None = None
    for index, line in enumerate(lines):
        if line.worker is not None and WORKER_FAILURE.search(line.message):
            found = line.model, _worker_story(lines, index, line.worker)
        elif line.worker is None and MODEL_REFUSED.search(line.message):
            who = MODEL_REFUSED.sub("", line.message)
            story = [entry.message for entry in lines[index : index + MAX_LINES]]
            found = who, story
        else:
            continue
        if has_exception(found[1]):
            return found
        first = first or found
    return first


def _worker_story(lines: list[LogLine], failure: int, worker: str) -> list[str]:
    """Returns a worker's output around its failure, up to the end of the traceback."""
    of_worker = [
        (index, line.message)
        for index, line in enumerate(lines)
        if line.worker == worker and line.logger.endswith("MODEL_LOG")
    ]
    before = [message for index, message in of_worker if index < failure]
    after: list[str] = []
    for index, message in of_worker:
        if index < failure:
            continue
        if message.startswith(WORKER_START):
            break
        after.append(message)
    return (after or before or [lines[failure].message])[-MAX_LINES:]


class TorchServe(Server):
    """A TorchServe process tree.

    Attributes:
        warm_up_key: marks the requests of the warm-up, which the prediction log leaves out.
    """

    product = "TorchServe"
    log_name = "torchserve.log"

    def __init__(self, plan: ServePlan) -> None:
        self.warm_up_key = secrets.token_hex(16)
        self.worker_counts: WorkerCounts = WorkerCounts()
        self._is_counting = threading.Lock()
        super().__init__(plan)

    @property
    def urls(self) -> dict[str, str]:
        if self.settings.grpc_port is None:
            return super().urls
        return {**super().urls, "grpc": f"{LOOPBACK}:{self.ports.grpc}"}

    @property
    def log_path(self) -> Path:
        return self.log_dir / (CONSOLE_LOG if self.settings.stock else self.log_name)

    def worker_pids(self) -> list[int]:
        return find_workers(self.pid)

    def wait_until_ready(self, timeout_s: float = 300.0) -> None:
        self._wait_until(self._are_all_ready, timeout_s)
        for socket in self.links().values():
            # A second lock: the run folder already belongs to this user alone.
            socket.chmod(0o600)

    def drain(self, timeout_s: float) -> bool:
        """Waits until the requests in flight are answered; False if the time was up first.

        TorchServe resets them when it ends, and keeps accepting new ones until then. Only the front
        door can stop new requests.

        Raises:
            OSError: the requests cannot be counted.
        """
        return wait_until_answered(self.ports.inference, timeout_s)

    def warm_up(self, statuses: Iterable[ModelStatus]) -> None:
        """Sends each of our models photographs, several at a time so that batches form.

        The workers warm up their models themselves. At READY, Java's request path is still cold,
        because it runs interpreted for its first requests, and no worker has had a real batch yet.
        The metrics count these requests. Failures are not reported: the first real request shows
        them.
        """
        headers = {WARM_UP_HEADER: self.warm_up_key}
        body = SAMPLE.read_bytes()
        socket = self.socket("inference")
        url = f"{UNIX}{socket}" if socket else self.inference_url
        with (
            open_http(url, headers=headers, timeout=WARM_UP_TIMEOUT_S) as client,
            ThreadPoolExecutor(WARM_UP_CLIENTS) as pool,
        ):
            for model, status in zip(self.plan.models, statuses):
                if model.is_ours:
                    path = f"/predictions/{model.name}/{model.version}"
                    requests = range(status.min_workers * WARM_UP_PER_WORKER)
                    list(pool.map(lambda _: client.post(path, content=body), requests))

    def _launch(self) -> None:
        folder = self._folder
        properties = build_properties(self.plan, self.ports, folder)
        config_path = folder / "effective.properties"
        config_path.write_text(format_properties(properties), encoding="utf-8")
        environment = make_environment(self.settings, folder, self.log_dir)
        environment[WARM_UP_VARIABLE] = self.warm_up_key
        # The console log of an earlier run is overwritten.
        with open(self.log_dir / CONSOLE_LOG, "wb") as console:
            self._start_process(
                make_command(self.settings, properties.get("vmargs", ""), config_path, folder),
                environment,
                console,
                cwd=folder,
            )
        if not (self.settings.unix_sockets or self.settings.stock):
            self._pages = StatusPages(self._find_page)
            self._pages.open_port(self.settings.host, self.ports.metrics)

    def _find_page(self, path: str, _: bool) -> str | None:
        """Returns Java's /metrics, and the workers of each model, which Java does not count."""
        if path != "/metrics":
            return None
        try:
            with open_http(f"{UNIX}{self.socket('metrics')}", timeout=PAGE_TIMEOUT_S) as client:
                page = client.get(path).text
        except httpx.HTTPError:
            return None  # so that Prometheus sees a server that does not answer
        # Two pages at a time would count an end twice.
        with self._is_counting:
            statuses = self.describe_models(PAGE_TIMEOUT_S)
            if statuses is None:
                return None
            self.worker_counts.note((), statuses)
        return page + "".join(f"{line}\n" for line in self.worker_counts.format())

    def _log_lines(self) -> list[LogLine]:
        return super()._log_lines() + read_log(self.log_dir / CONSOLE_LOG)

    def _are_all_ready(self) -> bool:
        statuses = self.describe_models()
        if statuses is None:  # TorchServe does not listen yet
            return False
        return all(one.ready_workers >= max(1, one.min_workers) for one in statuses)

    def _raise_if_failed(self) -> None:
        if find_load_failure(self._log_lines()) is not None:
            deadline = time.monotonic() + NEXT_ATTEMPT_S
            who = ""
            lines: list[str] = []
            while not has_exception(lines) and time.monotonic() < deadline:
                time.sleep(TRACEBACK_S)
                who, lines = find_load_failure(self._log_lines()) or ("", [])
            self._fail_to_load(who, lines)
        super()._raise_if_failed()
