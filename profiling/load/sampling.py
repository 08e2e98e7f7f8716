"""CPU time and memory of other processes, as the kernel counts them.

By group (`frontend`, `workers`): CPU time is the difference of two samples of the kernel's
counters, never a percentage over an interval. The counters step by 10 ms, so a window should last
seconds. An ended process counts as 0, so its group's figure falls visibly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

Groups = Mapping[str, Sequence[int]]
Figure = TypeVar("Figure", int, float)


def sample_cpu_s(groups: Groups) -> dict[str, float]:
    return add_up(groups, process_cpu_s)


def sample_rss_bytes(groups: Groups) -> dict[str, int]:
    """Returns resident memory by group; a shared page counts for each process that has it."""
    return add_up(groups, process_rss_bytes)


def sample_pss_bytes(groups: Groups) -> dict[str, int]:
    """Returns proportional memory by group; a page that n processes share counts 1/n for each.

    The sum over groups is right, except that a page shared with a process outside the groups counts
    only in part.
    """
    return add_up(groups, process_pss_bytes)


def add_up(groups: Groups, of_process: Callable[[int], Figure]) -> dict[str, Figure]:
    return {name: sum(map(of_process, pids)) for name, pids in groups.items()}


def process_cpu_s(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    children = times.children_user + times.children_system
    return float(times.user + times.system + children)


def process_rss_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def process_pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0


def subtract(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Returns the differences by group, rounded to the counters' step."""
    return {name: round(after[name] - before.get(name, 0.0), 3) for name in after}
