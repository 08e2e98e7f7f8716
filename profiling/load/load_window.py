"""One window of load on a running server: what it cost, and what its clients saw.

By group of processes (`frontend`, `workers`): CPU time is the difference of two samples of the
kernel's counters, never a percentage over an interval. The counters step by 10 ms, so a window
should last seconds. An ended process counts as 0, so its group's figure falls visibly.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from offpath.errors import ExpectedError
from offpath.profiling.core.host_facts import GpuReading, sampling_gpus
from offpath.profiling.core.run import Observer
from offpath.profiling.load.generators import (
    LoadSample,
    WindowLoad,
    send_load,
    wait_until_drained,
)

Groups = Mapping[str, Sequence[int]]
# The group of processes beside the server (a stand-in for S3): neither its CPU nor noise.
BESIDE = "beside"


@dataclass(frozen=True)
class RunningServer:
    """A server that answers; `servers.server_adapter.Adapter.running` gives one.

    Attributes:
        groups: returns process ids by group, for CPU and memory: `frontend`, `workers`, maybe
            BESIDE.
        is_running: returns False once the server has died.
        log_path: file that may say why the server died.
        began_s: time of its start (`time.perf_counter`), without what was started before it.
    """

    predict_url: str
    groups: Callable[[], Groups]
    is_running: Callable[[], bool]
    log_path: Path
    began_s: float


def add_up(groups: Groups, of_process: Callable[[int], float]) -> dict[str, float]:
    """Sums a figure of processes by group; a process that has ended counts as 0."""

    def read(pid: int) -> float:
        try:
            return of_process(pid)
        except (psutil.Error, OSError):
            return 0

    return {name: sum(map(read, pids)) for name, pids in groups.items()}


def read_cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return sum((times.user, times.system, times.children_user, times.children_system))


def read_rss_bytes(pid: int) -> int:
    """Returns resident memory; a shared page counts for each process that has it."""
    return int(psutil.Process(pid).memory_info().rss)


def read_pss_bytes(pid: int) -> int:
    """Returns proportional memory; a page that n processes share counts 1/n for each.

    The sum over groups is right, except that a page shared with a process outside the groups counts
    only in part.
    """
    return int(psutil.Process(pid).memory_full_info().pss)


class WindowWatcher:
    """Samples CPU at the window's two ends and notices a server that dies in between."""

    def __init__(self, name: str, running: RunningServer, observer: Observer) -> None:
        self._name, self.running, self._observer = name, running, observer
        self._groups = running.groups()
        self._before: dict[str, float] = {}
        self._busy_before_s = 0.0
        self.gpu_readings: list[list[GpuReading]] = []

    def on_window(self) -> None:
        self.gpu_readings.clear()
        self._groups = self.running.groups()
        self._before = add_up(self._groups, read_cpu_s)
        self._busy_before_s = machine_busy_s()

    def on_progress(self, replies: int, elapsed_s: float) -> None:
        self.check_running()
        self._observer.on_replies(replies, elapsed_s)

    def check_running(self) -> None:
        """Raises ExpectedError when the server is gone.

        Call it after a window too: the server may have died in its last half second.
        """
        if not self.running.is_running():
            raise ExpectedError(
                f"server {self._name!r} died under load; its log is {self.running.log_path}"
            )

    def cpu_s(self, sample: LoadSample) -> dict[str, float]:
        """Returns CPU seconds inside the window by group; call it when the window has ended."""
        busy_s = machine_busy_s() - self._busy_before_s
        after = add_up(self._groups, read_cpu_s)
        groups = {name: round(after[name] - self._before.get(name, 0.0), 3) for name in after}
        groups["generator"] = round(sample.cpu_s, 3)
        groups["other"] = round(max(0.0, busy_s - sum(groups.values())), 3)
        return groups

    def summarise_gpu(self) -> dict[str, float]:
        """Returns the means of the shares, and the most memory of all devices together."""
        totals = [sum(one["memory_bytes"] for one in some) for some in self.gpu_readings]
        figures = {"memory_bytes": max(totals)} if totals else {}
        for name in ("utilisation", "jpeg_utilisation"):
            shares = [one[name] for some in self.gpu_readings for one in some if name in one]
            if shares:
                figures[name] = round(statistics.mean(shares), 4)
        return figures


def measure_load(watcher: WindowWatcher, load: WindowLoad) -> dict[str, float | Sequence[float]]:
    """Runs a load on a server; returns the figures of its window, named as in `core.run`.

    BESIDE counts neither as the server's CPU nor as its memory. Raises ExpectedError if the server
    or the generator died.
    """
    with sampling_gpus(watcher.gpu_readings):
        sample = send_load(load, watcher)
    cpu_s = watcher.cpu_s(sample)
    watcher.check_running()
    own = {name: pids for name, pids in watcher.running.groups().items() if name != BESIDE}
    beside_s = {f"{BESIDE}_cpu_s": cpu_s.pop(BESIDE)} if BESIDE in cpu_s else {}
    groups: dict[str, Mapping[str, float]] = {
        "cpu_s": cpu_s,
        "rss_bytes": add_up(own, read_rss_bytes),
        "pss_bytes": add_up(own, read_pss_bytes),
        "gpu": watcher.summarise_gpu(),
    }
    wait_until_drained(load)
    return {
        "elapsed_s": round(sample.elapsed_s, 4),
        "replies_200": sample.statuses.get("200", 0),
        **{f"replies_{status}": n for status, n in sample.statuses.items()},
        "latency_ms": sample.latencies_ms,
        "other_cores": round(cpu_s["other"] / sample.elapsed_s, 4),
        **beside_s,
        **{
            f"{metric}.{group}": value
            for metric, values in groups.items()
            for group, value in values.items()
        },
    }


def machine_busy_s() -> float:
    """Returns the CPU seconds that the whole machine was not idle since it started."""
    times = psutil.cpu_times()
    # guest is part of user already.
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)
