"""mosec: a Rust front end, Python workers behind Unix sockets."""

from __future__ import annotations

from pathlib import Path

from offpath.profiling.load.model_under_test import ModelUnderTest
from offpath.profiling.servers.launched import is_ok
from offpath.profiling.servers.python_server import LOOPBACK, SERVICES, PythonServer
from offpath.profiling.servers.services.settings import ServiceSettings

ENVIRONMENT = "mosec"
# It brings its own HTTP server and needs two small packages.
REQUIREMENTS = ("mosec==0.9.8",)


class Mosec(PythonServer):
    """See `PythonServer`."""

    environment, requirements, size_mb = ENVIRONMENT, REQUIREMENTS, 40
    predict_path = "/inference"

    def make_command(self, python: Path, port: int) -> list[str]:
        """Its options are its program's; by default it listens on all addresses, for 3 s a
        request."""
        timeout_ms = ServiceSettings.timeout_s * 1000
        return [
            *(str(python), "-m", f"{SERVICES}.mosec_service"),
            *("--address", LOOPBACK, "--port", str(port), "--timeout", str(timeout_ms)),
        ]

    def is_ready(self, base_url: str, log: Path) -> bool:
        """It listens when the first worker is there; each says so in the log."""
        connected = log.read_text(errors="replace").count("socket connected to")
        return connected >= self.workers and is_ok(f"{base_url}/metrics")()

    def is_worker(self, command_line: str) -> bool:
        """Its workers are spawned; the rest is the Rust program, and Python that waits."""
        return "spawn_main" in command_line


def make_mosec(model: ModelUnderTest, cores: int) -> Mosec:
    """One worker a core."""
    return Mosec("mosec", model, cores)
