"""CPU time and memory of other processes, by group (`frontend`, `workers`), as the kernel counts.

CPU is the difference of two samples of the counters, never a percentage over an interval; their
step is 10 ms, so a window should hold some seconds. A process that has ended counts as 0: a group's
figure then falls, which shows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

Groups = Mapping[str, Sequence[int]]
Figure = TypeVar("Figure", int, float)


def sample_cpu_s(groups: Groups) -> dict[str, float]:
    """CPU seconds (user and system) each group has used since its processes began."""
    return add_up(groups, process_cpu_s)


def sample_rss_bytes(groups: Groups) -> dict[str, int]:
    """Resident memory by group, in bytes; pages that processes share count for each of them."""
    return add_up(groups, process_rss_bytes)


def sample_pss_bytes(groups: Groups) -> dict[str, int]:
    """Proportional memory by group, in bytes: a page that n processes share counts 1/n for each.

    It adds up; but a page shared with a process outside the groups counts only in part.
    """
    return add_up(groups, process_pss_bytes)


def add_up(groups: Groups, of_process: Callable[[int], Figure]) -> dict[str, Figure]:
    """A figure of each process, summed up by group."""
    return {name: sum(map(of_process, pids)) for name, pids in groups.items()}


def process_cpu_s(pid: int) -> float:
    """CPU seconds of one process with all its threads, and of its ended children."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    children = times.children_user + times.children_system
    return float(times.user + times.system + children)


def process_rss_bytes(pid: int) -> int:
    """Resident memory of one process."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def process_pss_bytes(pid: int) -> int:
    """Proportional memory of one process; 0 also for one that may not be looked into."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0


def subtract(
    after: Mapping[str, float], before: Mapping[str, float]
) -> dict[str, float]:
    """Differences by group, rounded to the counters' step."""
    return {name: round(after[name] - before.get(name, 0.0), 3) for name in after}


class Ticker:
    """Calls `sample` every `interval_s` on a thread of its own while the `with` block runs."""

    def __init__(self, interval_s: float, sample: Callable[[float], None]) -> None:
        """`sample` gets the seconds since the block began."""
        self._interval_s = interval_s
        self._sample = sample
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        start = time.monotonic()
        while not self._ended.wait(self._interval_s):
            self._sample(time.monotonic() - start)
