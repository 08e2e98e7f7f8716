"""Ray Serve: a proxy and replicas as Ray actors, in a network namespace of their own.

Ray's control ports (GCS, raylet, object manager, agents, each actor) listen on all addresses, also
with 127.0.0.1 as the node's; only where a machine has no other address do they keep to it.
"""

from __future__ import annotations

import os
import secrets

from offpath.profiling.servers.adapter import PackagedAdapter, Start
from offpath.profiling.servers.confined import MODULE, confine, why_no_namespace
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.services.settings import READY

# Of its throughput-optimised flags those that hold for whoever computes on the event loop.
LOGGING = {
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}
# docs.ray.io/en/latest/serve/advanced-guides/performance.html: HAProxy in the place of Ray's Python
# proxy, gRPC within, the application on the event loop of the requests.
FAST = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
# Set to 1 by who runs on a machine that nobody else reaches and that permits no namespace.
ALLOW_VARIABLE = "OFFPATH_RAY_ALL_ADDRESSES"


def may_listen_everywhere() -> bool:
    """Whether the user allows Ray without a namespace."""
    return os.environ.get(ALLOW_VARIABLE) == "1"


class RayServe(PackagedAdapter):
    """One replica a core."""

    name = "ray-serve"
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
    predict_path = "/"
    # Processes name themselves after their actor.
    worker_mark = "ray::ServeReplica"

    def why_not(self) -> str | None:
        """Not set up, or nowhere to confine it."""
        reason = None if may_listen_everywhere() else why_no_namespace()
        if reason is None:
            return super().why_not()
        return (
            f"Ray listens on all addresses and {reason}; where nobody else reaches this machine,"
            f" {ALLOW_VARIABLE}=1 runs it all the same"
        )

    def make_command(self, start: Start) -> list[str]:
        """Confined wherever that is possible; the port inside is the one outside."""
        command = start.run_service("ray_serve_service")
        if may_listen_everywhere() and why_no_namespace() is not None:
            return command
        return confine(start.python, start.port, start.port, command)

    def make_environment(self, start: Start) -> dict[str, str]:
        """No usage reports, no files in the user's home, a token of this run's own."""
        return super().make_environment(start) | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(start.scratch),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            **LOGGING,
        }

    def is_ready(self, start: Start) -> bool:
        """Its proxy answers before the replicas are there; the service prints a line then."""
        return READY in start.log.read_text(errors="replace")

    def is_frontend(self, command_line: str) -> bool:
        """All of Ray; the relay into the namespace is ours."""
        return MODULE not in command_line


class RayServeFast(RayServe):
    """The same program in the mode that Ray's documentation has for throughput."""

    name = "ray-serve-fast"
    ready_path = "/-/healthz"

    def make_environment(self, start: Start) -> dict[str, str]:
        """With its flags."""
        return super().make_environment(start) | FAST

    def is_ready(self, start: Start) -> bool:
        """The replicas are there, and HAProxy knows of them."""
        return super().is_ready(start) and PackagedAdapter.is_ready(self, start)
