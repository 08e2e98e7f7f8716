"""Ray Serve: a deployment with `serve.batch`, one replica a worker."""

# What it imports is installed in its own environment alone.
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import signal

import ray
from ray import serve
from starlette.requests import Request

from offpath.profiling.servers.services.settings import READY, ServiceSettings

SETTINGS = ServiceSettings.from_environment()


@serve.deployment(
    num_replicas=SETTINGS.workers,
    ray_actor_options={"num_cpus": 1},
    # The default of 5 would never fill a batch: its documentation asks for more than the batch.
    max_ongoing_requests=4 * SETTINGS.batch_size,
)
class Classifier:
    """A replica."""

    def __init__(self) -> None:
        self.classify_batch = SETTINGS.load_classifier()

    @serve.batch(
        max_batch_size=SETTINGS.batch_size,
        batch_wait_timeout_s=SETTINGS.max_batch_delay_ms / 1000,
    )
    async def classify(self, pictures: list[bytes]) -> list[dict[str, float]]:
        """A batch, gathered from concurrent calls; in a thread, as Ray asks of what computes."""
        return await asyncio.to_thread(self.classify_batch, pictures)

    async def __call__(self, request: Request) -> dict[str, float]:
        """One request."""
        return await self.classify(await request.body())


if __name__ == "__main__":
    # Without the dashboard's pages; log lines stay in Ray's own files.
    ray.init(include_dashboard=False, num_cpus=SETTINGS.workers, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": SETTINGS.port})
    # Returns when all replicas are healthy.
    serve.run(Classifier.bind())
    print(READY, flush=True)
    signal.pause()
