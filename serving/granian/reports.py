"""The state of a Granian server, from the reports of its supervisor and workers.

Its pages are /metrics and TorchServe's read-only management calls, for all workers.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from offpath.serving.granian.metric_sums import Key
from offpath.serving.server.served_model import ServedModel

MAX_REPORT_BYTES = 1 << 18
# A worker reports once per second. One that has been silent for longer takes no requests.
SILENT_S = 5.0


class Reports:
    """Collects reports in a thread.

    Attributes:
        failure: `NAME_VERSION` of a model that could not load, and why; None while none failed.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        host_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models, self._host_name, self._clock = models, host_name, clock
        self._lock = threading.Lock()
        # Slot -> process id and description of the worker that is READY there.
        self._ready: dict[int, tuple[int, Mapping[str, Any]]] = {}
        # Slot -> time of its last report.
        self._heard_s: dict[int, float] = {}
        self._series: dict[Key, float] = {}
        # Model, version and how a worker ended.
        self._ends: Counter[tuple[str, str, str]] = Counter()
        self.failure: tuple[str, list[str]] | None = None

    def follow(self, receiver: socket.socket) -> None:
        threading.Thread(target=self._run, args=(receiver,), daemon=True).start()

    def _run(self, receiver: socket.socket) -> None:
        # The supervisor may end before it has read its plan.
        with receiver, contextlib.suppress(ConnectionResetError):
            while message := receiver.recv(MAX_REPORT_BYTES):
                with self._lock:
                    self._take(json.loads(message))

    def _take(self, report: dict[str, Any]) -> None:
        slot = report["slot"]
        self._heard_s[slot] = self._clock()
        if "ready" in report:
            self._ready[slot] = report["pid"], report["ready"]
        elif "ended" in report:
            self._ready.pop(slot, None)
            for model in self._find_models(slot):
                self._ends[model.name, model.version, report["ended"]] += 1
            self._fail(slot, f"its worker ended {report['ended']}")
        elif "failed" in report:
            self._fail(slot, report["failed"])
        for (name, labels, is_counter), value in report.get("series", ()):
            key = name, tuple(map(tuple, labels)), is_counter
            before = self._series.get(key, 0.0) if is_counter else 0.0
            self._series[key] = before + value

    def _find_models(self, slot: int) -> list[ServedModel]:
        return [one for one in self._models if slot in one.slots]

    def _read_status(self, slot: int) -> str:
        is_silent = self._clock() > self._heard_s[slot] + SILENT_S
        return "SILENT" if is_silent else "READY"

    def _fail(self, slot: int, why: str) -> None:
        models = self._find_models(slot)
        who = "".join(f"{model.name}_{model.version}" for model in models)
        # The first failure is the cause; the end of its worker follows.
        self.failure = self.failure or (who, [why])

    def are_all_ready(self) -> bool:
        with self._lock:
            return len(self._ready) == sum(len(model.slots) for model in self._models)

    def list_pids(self) -> list[int]:
        with self._lock:
            return [pid for _, (pid, _) in sorted(self._ready.items())]

    def list_models(self) -> dict[str, Any]:
        """Returns the answer to GET /models of TorchServe's management API."""
        models = [
            {"modelName": model.name, "modelUrl": model.archive}
            for model in self._models
            if model.is_default
        ]
        return {"models": models}

    def describe(self, name: str, version: str | None) -> list[dict[str, Any]]:
        """Returns the answer to GET /models/NAME/VERSION, or to /models/NAME/all."""
        with self._lock:
            return [
                self._describe(model)
                for model in self._models
                if model.name == name and version in (None, model.version)
            ]

    def _describe(self, model: ServedModel) -> dict[str, Any]:
        ready = {slot: self._ready[slot] for slot in model.slots if slot in self._ready}
        described = next((one for _, one in ready.values()), {})
        is_gpu = str(described.get("device", "")).startswith("cuda")
        return {
            "modelName": model.name,
            "modelVersion": model.version,
            "modelUrl": model.archive,
            **model.settings.list_numbers(),
            "workers": [
                {"status": self._read_status(slot), "pid": pid, "gpu": is_gpu}
                for slot, (pid, _) in ready.items()
            ],
            "customizedMetadata": described,
        }

    def format_metrics(self) -> str:
        with self._lock:
            series = sorted([*self._series.items(), *self._count_workers()])
        lines = []
        for (name, labels, _), value in series:
            # As TorchServe spells its own label and the handler's.
            host = "hostname" if name.startswith("ts_") else "Hostname"
            pairs = (*labels, (host, self._host_name))
            # With a comma at the end, as TorchServe writes it.
            text = "".join(f"{key}={json.dumps(one, ensure_ascii=False)}," for key, one in pairs)
            lines.append(f"{name}{{{text}}} {value}\n")
        return "".join(lines)

    def _count_workers(self) -> Iterator[tuple[Key, float]]:
        """Yields what only the supervisor sees: a worker that does not load reports nothing."""
        for model in self._models:
            labels = ("model", model.name), ("version", model.version)
            slots = [slot for slot in model.slots if slot in self._ready]
            ready = sum(self._read_status(slot) == "READY" for slot in slots)
            yield ("offpath_workers_ready", labels, False), ready
            yield ("offpath_workers_wanted", labels, False), len(model.slots)
        for (name, version, how), count in self._ends.items():
            end = ("model", name), ("version", version), ("how", how)
            yield ("offpath_worker_ends_total", end, True), count


def find_page(reports: Reports, path: str, is_private: bool) -> object:
    """Returns /metrics as text, or the JSON of a management call; nothing for an unknown one."""
    if path == "/metrics":
        return reports.format_metrics()
    if not is_private:
        return None
    match [unquote(part) for part in path.split("/")[1:]]:
        case ["models"]:
            return reports.list_models()
        case ["models", name]:
            return reports.describe(name, None)[:1]
        case ["models", name, version]:
            return reports.describe(name, None if version == "all" else version)
    return None
