"""BentoML: a front service that takes the request, a batching service with the model behind it."""

from __future__ import annotations

from typing import Any

from offpath.profiling.servers.adapter import SERVICES, PackagedAdapter, Start
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.server_process import LOOPBACK


class BentoML(PackagedAdapter):
    """One worker a core."""

    name = "bentoml"
    environment = Environment(
        "bentoml",
        (
            "bentoml==1.4.39",
            # What it serves with and calls its own services with; left open they would make another
            # server of it each month.
            "aiohttp==3.14.5",
            "starlette==1.10.0",
            "uvicorn==0.54.0",
        ),
        size_mb=50,
    )
    predict_path, ready_path = "/classify", "/readyz"
    # The front service answers before the workers behind it are there.
    ready_line = "Service Classifier initialized"
    # The rest is the front service and the supervisor.
    worker_mark = "--service-name Classifier"

    @property
    def settings(self) -> dict[str, Any]:
        """Its dispatcher sets the delay itself, from what it has seen."""
        return super().settings | {"max_batch_delay_ms": "adaptive"}

    def make_command(self, start: Start) -> list[str]:
        """`bentoml serve`."""
        return [
            *(str(start.python), "-m", "bentoml", "serve"),
            f"{SERVICES}.bentoml_service:Front",
            *("--host", LOOPBACK, "--port", str(start.port)),
        ]

    def make_environment(self, start: Start) -> dict[str, str]:
        """No usage reports, no store in the user's home."""
        return super().make_environment(start) | {
            "BENTOML_DO_NOT_TRACK": "True",
            "BENTOML_HOME": str(start.scratch / "bentoml"),
        }
