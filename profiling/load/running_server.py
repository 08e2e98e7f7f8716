"""A server that answers requests, as load and measurements see it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from offpath.profiling.load.sampling import Groups

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
