"""mosec: a Rust front end, Python workers behind Unix sockets."""

from __future__ import annotations

from offpath.profiling.servers.behind_nginx import BehindNginx
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.server_adapter import PackagedAdapter, Start
from offpath.serving.server.server_settings import LOOPBACK

# The load gives a request up after this time too, so that a slow model's queue is measured.
TIMEOUT_MS = 120_000


class Mosec(PackagedAdapter):
    """mosec with one worker per core."""

    name = "mosec"
    # It brings its own HTTP server and needs two small packages.
    environment = Environment("mosec", ("mosec==0.9.8",), size_mb=40)
    program = "mosec_program.py"
    predict_path, ready_path = "/inference", "/metrics"
    # It listens when the first worker is there.
    ready_line = "socket connected to"
    # The other processes are the Rust program, and Python that waits.
    worker_mark = "spawn_main"

    def make_command(self, start: Start) -> list[str]:
        # By default it listens on all addresses, and gives up a request after 3 s.
        return [
            *super().make_command(start),
            *("--address", LOOPBACK, "--port", str(start.port)),
            *("--timeout", str(TIMEOUT_MS)),
        ]


class MosecOffpathDecode(Mosec):
    """The same with our decode and engine in its worker, so that only the servers differ."""

    name, kind = "mosec-offpath-decode", "offpath-decode"


class MosecNginx(BehindNginx, MosecOffpathDecode):
    name = "mosec-nginx"
