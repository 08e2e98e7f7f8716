"""Ray Serve: a proxy and replicas as Ray actors, in a network namespace of their own.

Ray's control ports (GCS, raylet, object manager, agents, each actor) listen on all addresses, even
where 127.0.0.1 is the node's address. They keep to it only where a machine has no other address.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from offpath.deploy.ray.ray_export import export_ray
from offpath.profiling.servers.archives import NAME, build_for_export
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.network_namespace import confine, why_no_namespace
from offpath.profiling.servers.server_adapter import PackagedAdapter, Start

# In a namespace of its own every port is free.
EXPORT_PORT = 8000
# docs.ray.io/en/latest/serve/advanced-guides/performance.html: HAProxy in the place of Ray's Python
# proxy, gRPC within, the application on the event loop of the requests, less logging.
FAST = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}


class OffpathRay(PackagedAdapter):
    """Ray Serve with the output of `offpath export ray`, behind Ray's HAProxy."""

    name, kind = "offpath-ray", "offpath"
    environment = Environment(
        "ray-serve",
        (
            "ray[serve]==2.60.0",
            # What it serves with; left open they would make another server of it each month.
            "fastapi==0.165.0",
            "starlette==1.10.0",
            "uvicorn==0.54.0",
        ),
        size_mb=350,
    )
    # A replica answers `ready_path`.
    predict_path, ready_path = f"/predictions/{NAME}", "/ping"
    # Processes name themselves after their actor.
    worker_mark = "ray::ServeReplica"

    def why_not(self) -> str | None:
        reason = why_no_namespace()
        return f"Ray listens on all addresses and {reason}" if reason else super().why_not()

    def build(self, folder: Path) -> None:
        archive = build_for_export(self.model, self.workers, self.batch_size, folder)
        export_ray(archive, folder / "application", port=EXPORT_PORT)

    def make_command(self, start: Start) -> list[str]:
        # In a namespace, because HAProxy and Ray listen on all addresses.
        config = start.folder / "application" / "config.yaml"
        command = [str(start.python), "-m", "ray.serve.scripts", "run", str(config)]
        return confine(start.python, start.port, EXPORT_PORT, command)

    def make_environment(self, start: Start) -> dict[str, str]:
        # No usage reports, no files in the user's home, a token for this run alone.
        return super().make_environment(start) | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(start.scratch),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "PYTHONPATH": str(start.folder / "application"),
            "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": self.workers}),
            **FAST,
        }
