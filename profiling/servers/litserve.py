"""LitServe: uvicorn processes in front, worker processes behind queues."""

from __future__ import annotations

from pathlib import Path

from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.servers.launched import is_ok
from offpath.profiling.servers.python_server import SERVICES, PythonServer

ENVIRONMENT = "litserve"
REQUIREMENTS = (
    "litserve==0.2.19",
    # What it serves with; left open they would make another server of it each month.
    "fastapi==0.165.0",
    "starlette==1.10.0",
    "uvicorn==0.54.0",
)


class LitServe(PythonServer):
    """See `PythonServer`."""

    environment, requirements, size_mb = ENVIRONMENT, REQUIREMENTS, 50
    predict_path = "/predict"

    def make_command(self, python: Path, port: int) -> list[str]:
        """Its program takes the port from the settings."""
        return [str(python), "-m", f"{SERVICES}.litserve_service"]

    def is_ready(self, base_url: str, log: Path) -> bool:
        """200 when all workers have run `setup`."""
        return is_ok(f"{base_url}/health")()

    def is_worker(self, command_line: str) -> bool:
        """Its workers are spawned, its HTTP processes forked."""
        return "spawn_main" in command_line


def make_litserve(model: ModelUnderTest, cores: int) -> LitServe:
    """One worker a core, and as many HTTP processes, which is its default."""
    return LitServe("litserve", model, cores)
