"""One window of load on a server: what it cost, and whether the cores were the server's alone."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import psutil

from offpath.handler.errors import ExpectedError
from offpath.profiling.core.experiment import Observer
from offpath.profiling.core.gpu import GpuReading, GpuSampler
from offpath.profiling.load.plan import Generator, LoadPlan, LoadSample
from offpath.profiling.load.running_server import (
    BESIDE,
    RunningServer,
    list_own_groups,
    sample_cpu_s,
    sample_pss_bytes,
    sample_rss_bytes,
    subtract,
)


class WindowWatcher:
    """Samples CPU at the window's two ends and notices a server that dies in between."""

    def __init__(self, name: str, running: RunningServer, observer: Observer) -> None:
        self._name, self.running, self._observer = name, running, observer
        self._groups = running.groups()
        self._before: dict[str, float] = {}
        self._busy_before_s = 0.0
        self._begin_s = time.monotonic()
        self._opened_s = 0.0

    def on_window(self) -> None:
        self._opened_s = time.monotonic() - self._begin_s
        self._groups = self.running.groups()
        self._before = sample_cpu_s(self._groups)
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
                f"server {self._name!r} died under load; its log is {self.running.log_path()}"
            )

    def cpu_s(self, sample: LoadSample) -> dict[str, float]:
        """Returns CPU seconds inside the window by group; call it when the window has ended."""
        busy_s = machine_busy_s() - self._busy_before_s
        groups = subtract(sample_cpu_s(self._groups), self._before)
        groups["generator"] = round(sample.cpu_s, 3)
        groups["other"] = round(max(0.0, busy_s - sum(groups.values())), 3)
        return groups

    def summarise_gpu(self, readings: Sequence[GpuReading]) -> dict[str, float]:
        # The sampler's clock starts with the load, a moment after ours.
        inside = [r for r in readings if r.at_s >= self._opened_s]
        shares = {
            "utilisation": [r.utilisation for r in inside],
            "jpeg_utilisation": [r.jpeg_utilisation for r in inside],
        }
        memory: dict[float, int] = defaultdict(int)
        for reading in inside:
            memory[reading.at_s] += reading.memory_used_bytes
        figures = {"memory_bytes": float(max(memory.values()))} if memory else {}
        for name, values in shares.items():
            known = [value for value in values if value is not None]
            if known:
                figures[name] = round(statistics.mean(known), 4)
        return figures


def measure_load(
    watcher: WindowWatcher, plan: LoadPlan, generator: Generator
) -> dict[str, float | Sequence[float]]:
    """Runs a plan on a server; returns the figures of its window, named as in `core.run`.

    Raises ExpectedError if the server or the generator died.
    """
    with GpuSampler() as gpu:
        sample = generator.run(plan, watcher)
    cpu_s = watcher.cpu_s(sample)
    watcher.check_running()
    groups: dict[str, Mapping[str, float]] = {
        "rss_bytes": sample_rss_bytes(list_own_groups(watcher.running)),
        "pss_bytes": sample_pss_bytes(list_own_groups(watcher.running)),
        "gpu": watcher.summarise_gpu(gpu.readings),
    }
    return {
        **name_figures(sample, cpu_s),
        **{
            f"{metric}.{group}": value
            for metric, values in groups.items()
            for group, value in values.items()
        },
    }


def name_figures(
    sample: LoadSample, cpu_s: Mapping[str, float]
) -> dict[str, float | Sequence[float]]:
    """Returns what clients saw and the CPU time by group; BESIDE is not counted as the server's."""
    return {
        "elapsed_s": round(sample.elapsed_s, 4),
        "replies_200": sample.ok,
        **{f"replies_{status}": n for status, n in sample.statuses.items()},
        "latency_ms": sample.latencies_ms,
        "other_cores": round(cpu_s["other"] / sample.elapsed_s, 4),
        **{
            f"{BESIDE}_cpu_s" if group == BESIDE else f"cpu_s.{group}": seconds
            for group, seconds in cpu_s.items()
        },
    }


def machine_busy_s() -> float:
    """Returns the CPU seconds that the whole machine was not idle since it started."""
    times = psutil.cpu_times()
    # guest is part of user already.
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)
