"""The classifier as a Ray Serve application."""

from __future__ import annotations

import asyncio
import signal

import ray
from ray import serve
from starlette.requests import Request

from offpath.profiling.servers.programs.program_settings import READY, ProgramSettings
from offpath.serving.server.server_settings import LOOPBACK

SETTINGS = ProgramSettings.from_environment()


@serve.deployment(
    num_replicas=SETTINGS.workers,
    ray_actor_options={"num_cpus": 1},
    # The default of 5 would never fill a batch: Ray's documentation asks for more than the batch.
    max_ongoing_requests=4 * SETTINGS.batch_size,
)
class RayReplica:
    """Decodes and classifies in an actor."""

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
