"""mosec: a Rust front end, Python workers behind Unix sockets."""

from __future__ import annotations

from offpath.profiling.servers.adapter import PackagedAdapter, Start
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.server_process import LOOPBACK
from offpath.profiling.servers.services.settings import ServiceSettings


class Mosec(PackagedAdapter):
    """One worker a core."""

    name = "mosec"
    # It brings its own HTTP server and needs two small packages.
    environment = Environment("mosec", ("mosec==0.9.8",), size_mb=40)
    predict_path, ready_path = "/inference", "/metrics"
    # It listens when the first worker is there.
    ready_line = "socket connected to"
    # The rest is the Rust program, and Python that waits.
    worker_mark = "spawn_main"

    def make_command(self, start: Start) -> list[str]:
        """Its options are its program's; by default it listens on all addresses, for 3 s a
        request."""
        timeout_ms = ServiceSettings.timeout_s * 1000
        return start.run_service(
            "mosec_service",
            *("--address", LOOPBACK, "--port", str(start.port)),
            *("--timeout", str(timeout_ms)),
        )


class MosecOffpathDecode(Mosec):
    """Our decode and engine in its worker: what is left of the difference is the server's."""

    name, kind = "mosec-offpath-decode", "offpath-decode"
