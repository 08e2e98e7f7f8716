"""Ray Serve: a proxy and replicas as Ray actors, in a network namespace of their own.

Ray's control ports (GCS, raylet, object manager, agents, each actor) listen on all addresses, even
where 127.0.0.1 is the node's address. They keep to it only where a machine has no other address.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from typing import TYPE_CHECKING

from offpath.profiling.servers.adapter import (
    READY,
    PackagedAdapter,
    ProgramSettings,
    Start,
    is_service,
)
from offpath.profiling.servers.confined import confine, why_no_namespace
from offpath.profiling.servers.environments import Environment
from offpath.serving.server.server_settings import LOOPBACK

if TYPE_CHECKING:
    from starlette.requests import Request

# Those of Ray's throughput-optimised flags that suit an application which computes on the event
# loop.
LOGGING = {
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}
# docs.ray.io/en/latest/serve/advanced-guides/performance.html: HAProxy in the place of Ray's Python
# proxy, gRPC within, the application on the event loop of the requests.
FAST = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
# Set it to 1 on a machine that nobody else reaches and that permits no namespace.
ALLOW_VARIABLE = "OFFPATH_RAY_ALL_ADDRESSES"


def may_listen_everywhere() -> bool:
    return os.environ.get(ALLOW_VARIABLE) == "1"


class RayServe(PackagedAdapter):
    """Ray Serve with one replica per core, in the mode that its documentation recommends."""

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
    predict_path, ready_path = "/", "/-/healthz"
    # Processes name themselves after their actor.
    worker_mark = "ray::ServeReplica"

    def why_not(self) -> str | None:
        reason = None if may_listen_everywhere() else why_no_namespace()
        if reason is None:
            return super().why_not()
        return (
            f"Ray listens on all addresses and {reason}; where nobody else reaches this machine,"
            f" {ALLOW_VARIABLE}=1 runs it all the same"
        )

    def make_command(self, start: Start) -> list[str]:
        command = super().make_command(start)
        if may_listen_everywhere() and why_no_namespace() is not None:
            return command
        # The port inside is the one outside.
        return confine(start.python, start.port, start.port, command)

    def make_environment(self, start: Start) -> dict[str, str]:
        # No usage reports, no files in the user's home, a token for this run alone.
        return super().make_environment(start) | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(start.scratch),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            **LOGGING,
            **FAST,
        }

    def is_ready(self, start: Start) -> bool:
        # The program prints a line when the replicas are there. HAProxy learns of them later.
        return READY in start.log.read_text(errors="replace") and super().is_ready(start)


if is_service():
    import ray
    from ray import serve

    SETTINGS = ProgramSettings.from_environment()

    @serve.deployment(
        num_replicas=SETTINGS.workers,
        ray_actor_options={"num_cpus": 1},
        # The default of 5 would never fill a batch: Ray's documentation asks for more than the
        # batch.
        max_ongoing_requests=4 * SETTINGS.batch_size,
    )
    class RayReplica:
        def __init__(self) -> None:
            self.classify_batch = SETTINGS.load_classifier()

        @serve.batch(  # type: ignore[untyped-decorator]
            max_batch_size=SETTINGS.batch_size,
            batch_wait_timeout_s=SETTINGS.max_batch_delay_ms / 1000,
        )
        async def classify(self, images: list[bytes]) -> list[dict[str, float]]:
            """Answers concurrent calls in a thread, as Ray asks of what computes."""
            return await asyncio.to_thread(self.classify_batch, images)

        async def __call__(self, request: Request) -> dict[str, float]:
            labels: dict[str, float] = await self.classify(await request.body())
            return labels


if __name__ == "__main__":
    # Without the dashboard's pages; log lines stay in Ray's own files.
    ray.init(include_dashboard=False, num_cpus=SETTINGS.workers, log_to_driver=False)
    serve.start(http_options={"host": LOOPBACK, "port": SETTINGS.port})
    # Returns when all replicas are healthy.
    serve.run(RayReplica.bind())  # type: ignore[attr-defined]
    print(READY, flush=True)
    signal.pause()
