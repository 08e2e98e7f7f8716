"""Limits of one worker: its share of the machine's cores, and TorchServe's time for a batch."""

from __future__ import annotations

import os
from pathlib import Path

# A container's limit in cgroup v2: `200000 100000` or `max 100000`.
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")

# Share of `responseTimeout` in which decoding may begin; the rest is for images that are being
# decoded and for the forward pass.
DECODE_SHARE = 0.75


def count_cores() -> int:
    """Returns the cores that this process may use: its affinity, within a container's limit."""
    cores, limit = count_visible_cores(), read_cpu_limit()
    return cores if limit is None else max(1, min(cores, int(limit)))


def count_visible_cores() -> int:
    """Returns the cores of this process's affinity, though a container may allow fewer."""
    return len(os.sched_getaffinity(0))


def read_cpu_limit() -> float | None:
    """Returns a container's CPU limit in cores, which affinity does not show; None without."""
    try:
        quota, period = map(int, CPU_LIMIT.read_text().split())
    except (OSError, ValueError):  # no cgroup v2, or `max`
        return None
    return quota / period


def decode_budget_s(response_timeout_s: float) -> float:
    """Returns the seconds after which no further image of a batch is decoded.

    At `responseTimeout` TorchServe ends the worker, and the whole batch gets a 500.
    """
    return DECODE_SHARE * response_timeout_s
