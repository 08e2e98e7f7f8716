"""BentoML: a front service that takes the request, a batching service with the model behind it."""

from __future__ import annotations

from pathlib import Path

from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.servers.launched import is_ok
from offpath.profiling.servers.python_server import LOOPBACK, SERVICES, PythonServer

ENVIRONMENT = "bentoml"
REQUIREMENTS = (
    "bentoml==1.4.39",
    # What it serves with and calls its own services with; left open they would make another server
    # of it each month.
    "aiohttp==3.14.5",
    "starlette==1.10.0",
    "uvicorn==0.54.0",
)


class BentoML(PythonServer):
    """See `PythonServer`."""

    environment, requirements, size_mb = ENVIRONMENT, REQUIREMENTS, 50
    predict_path = "/classify"

    @property
    def settings(self) -> dict[str, object]:
        """Its dispatcher sets the delay itself, from what it has seen."""
        return super().settings | {"max_batch_delay_ms": "adaptive"}

    def make_command(self, python: Path, port: int) -> list[str]:
        """`bentoml serve`."""
        return [
            *(
                str(python),
                "-m",
                "bentoml",
                "serve",
                f"{SERVICES}.bentoml_service:Front",
            ),
            *("--host", LOOPBACK, "--port", str(port)),
        ]

    def make_environment(
        self, python: Path, port: int, scratch: Path
    ) -> dict[str, str]:
        """No usage reports, no store in the user's home."""
        return super().make_environment(python, port, scratch) | {
            "BENTOML_DO_NOT_TRACK": "True",
            "BENTOML_HOME": str(scratch / "bentoml"),
        }

    def is_ready(self, base_url: str, log: Path) -> bool:
        """Each worker of the model's service says so in the log; then the front one answers."""
        text = log.read_text(errors="replace")
        initialized = text.count("Service Classifier initialized")
        return initialized >= self.workers and is_ok(f"{base_url}/readyz")()

    def is_worker(self, command_line: str) -> bool:
        """Each service has its processes; the rest is the front service and the supervisor."""
        return "--service-name Classifier" in command_line


def make_bentoml(model: ModelUnderTest, cores: int) -> BentoML:
    """One worker a core."""
    return BentoML("bentoml", model, cores)
