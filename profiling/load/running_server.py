"""A server that answers requests, and CPU time and memory of its processes.

By group (`frontend`, `workers`): CPU time is the difference of two samples of the kernel's
counters, never a percentage over an interval. The counters step by 10 ms, so a window should last
seconds. An ended process counts as 0, so its group's figure falls visibly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import psutil

Groups = Mapping[str, Sequence[int]]
Figure = TypeVar("Figure", int, float)
# The group of processes beside the server (a stand-in for S3): neither its CPU nor noise.
BESIDE = "beside"


class RunningServer(Protocol):
    """A server that answers; `servers.adapter.Adapter.running` gives one."""

    predict_url: str

    def groups(self) -> Groups:
        """Returns process ids by group, for CPU and memory: `frontend`, `workers`, maybe BESIDE."""

    def is_running(self) -> bool:
        """Returns False once the server has died."""

    def log_path(self) -> Path:
        """Returns the file that may say why the server died."""


def list_own_groups(running: RunningServer) -> Groups:
    groups = running.groups()
    return {name: pids for name, pids in groups.items() if name != BESIDE}


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
