"""MLPerf LoadGen in a process of its own; plan and events as `locust_child.py` has them.

LoadGen hands samples to `issue`; a thread a client posts them by `http.client`. It knows neither
statuses nor failures: those are counted here.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import mlperf_loadgen as lg  # type: ignore[import-not-found]

NO_REPLY = "none"
# The Offline scenario must be told the rate beforehand; so long a warm-up finds it.
LEAST_WARM_UP_S = 0.5
COMPLETE_NS = re.compile(r'"name":"Sample",.*"complete_ns":(\d+)')


class Senders:
    """One connection and thread a client, fed by a queue."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.statuses: Counter[str] = Counter()
        self._url = urlsplit(plan["url"])
        self._headers = plan["headers"]
        self._timeout_s = plan["timeout_s"]
        self._bodies = [Path(path).read_bytes() for path in plan["paths"]]
        self._queue: SimpleQueue[Any] = SimpleQueue()
        for _ in range(plan["clients"]):
            threading.Thread(target=self._send_all, daemon=True).start()

    def issue(self, samples: Iterable[Any]) -> None:
        """LoadGen's callback; returns at once."""
        for sample in samples:
            self._queue.put(sample)

    def _send_all(self) -> None:
        connection = self._connect()
        while True:
            sample = self._queue.get()
            try:
                self.statuses[self._post(connection, sample.index)] += 1
            except (OSError, http.client.HTTPException):
                self.statuses[NO_REPLY] += 1
                connection.close()
                connection = self._connect()
            if sample.id is not None:
                lg.QuerySamplesComplete([lg.QuerySampleResponse(sample.id, 0, 0)])

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._url.netloc, timeout=self._timeout_s)

    def _post(self, connection: http.client.HTTPConnection, index: int) -> str:
        body = self._bodies[index % len(self._bodies)]
        connection.request("POST", self._url.path, body, self._headers)
        reply = connection.getresponse()
        reply.read()
        return str(reply.status)


class Unscheduled:
    """A sample that LoadGen has not issued."""

    id, index = None, 0


def find_rate(senders: Senders, clients: int, seconds: float) -> float:
    """Replies a second of all clients together, before LoadGen takes over."""
    begin_s = time.perf_counter()
    issued = 0
    while (elapsed_s := time.perf_counter() - begin_s) < seconds:
        waiting = issued - senders.statuses.total()
        senders.issue([Unscheduled] * (2 * clients - waiting))
        issued += max(0, 2 * clients - waiting)
        time.sleep(0.001)
    rate = senders.statuses.total() / elapsed_s
    while senders.statuses.total() < issued:
        time.sleep(0.001)
    senders.statuses.clear()
    return rate


def make_settings(plan: dict[str, Any], senders: Senders) -> Any:
    """LoadGen's own settings."""
    settings = lg.TestSettings()
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms = round(1000 * (plan["seconds"] or 0))
    settings.min_query_count = plan["requests"] or 1
    if plan["rate"] is not None:
        settings.scenario = lg.TestScenario.Server
        settings.server_target_qps = plan["rate"]
        return settings
    warm_up_s = max(LEAST_WARM_UP_S, plan["warm_up_s"])
    settings.scenario = lg.TestScenario.Offline
    settings.offline_expected_qps = find_rate(senders, plan["clients"], warm_up_s)
    return settings


def run_loadgen(settings: Any, senders: Senders, folder: str, has_trace: bool) -> None:
    """Runs the test; its files are in the folder then."""
    log = lg.LogSettings()
    log.log_output = lg.LogOutputSettings()
    log.log_output.outdir = folder
    # Each sample's own times; of the Offline scenario they would be the queue's.
    log.enable_trace = has_trace
    sut = lg.ConstructSUT(senders.issue, lambda: None)
    samples = lg.ConstructQSL(8, 8, lambda _: None, lambda _: None)
    lg.StartTestWithLogSettings(sut, samples, settings, log)


def read_latencies_ms(trace: Path) -> list[float]:
    """From when a request was due to when it was complete; the file is not quite JSON."""
    return [int(ns) / 1e6 for ns in COMPLETE_NS.findall(trace.read_text())]


def emit(**event: Any) -> None:
    """One event line."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Runs the plan on stdin."""
    plan = json.load(sys.stdin)
    senders = Senders(plan)
    settings = make_settings(plan, senders)
    is_open = plan["rate"] is not None
    emit(event="window")
    with tempfile.TemporaryDirectory() as folder:
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        run_loadgen(settings, senders, folder, is_open)
        elapsed_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
        trace = Path(folder) / "mlperf_log_trace.json"
        emit(
            event="result",
            elapsed_s=elapsed_s,
            cpu_s=cpu_s,
            statuses=dict(senders.statuses),
            latencies_ms=read_latencies_ms(trace) if is_open else [],
        )


if __name__ == "__main__":
    main()
