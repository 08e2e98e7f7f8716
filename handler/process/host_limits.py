"""Limits of one worker: its share of the machine's cores, and TorchServe's time for a batch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A container's limit in cgroup v2: `200000 100000` or `max 100000`.
CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")

# Share of `responseTimeout` in which decoding may begin; the rest is for images that are being
# decoded and for the forward pass.
DECODE_SHARE = 0.75
# TorchServe's default (ConfigManager.java).
DEFAULT_RESPONSE_TIMEOUT_S = 120


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


def threads_per_worker(model_config: Mapping[str, Any]) -> int:
    """Returns cores / workers, at least 1."""
    workers = max(1, int(model_config.get("maxWorkers") or model_config.get("minWorkers") or 1))
    return max(1, count_cores() // workers)


def decode_budget_s(model_config: Mapping[str, Any]) -> float:
    """Returns the seconds after which no further image of a batch is decoded.

    At `responseTimeout` TorchServe ends the worker, and the whole batch gets a 500.
    """
    response_timeout_s = model_config.get("responseTimeout")
    return DECODE_SHARE * float(response_timeout_s or DEFAULT_RESPONSE_TIMEOUT_S)
