"""LitServe: uvicorn processes in front, worker processes behind queues."""

from __future__ import annotations

from offpath.profiling.servers.adapter import PackagedAdapter, Start
from offpath.profiling.servers.environments import Environment


class LitServe(PackagedAdapter):
    """One worker a core, and as many HTTP processes, which is its default."""

    name = "litserve"
    environment = Environment(
        "litserve",
        (
            "litserve==0.2.19",
            # What it serves with; left open they would make another server of it each month.
            "fastapi==0.165.0",
            "starlette==1.10.0",
            "uvicorn==0.54.0",
        ),
        size_mb=50,
    )
    # The latter is 200 when all workers have run `setup`.
    predict_path, ready_path = "/predict", "/health"
    # Its workers are spawned, its HTTP processes forked.
    worker_mark = "spawn_main"

    def make_command(self, start: Start) -> list[str]:
        """Its program takes the port from the settings."""
        return start.run_service("litserve_service")
