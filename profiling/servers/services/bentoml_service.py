"""BentoML: the batchable service with the model, and a front service that takes one picture.

A batchable method takes a list from each client; the documented way to one item a request is a
second service in front.
"""

# What it imports is installed in its own environment alone.
# mypy: ignore-errors

from __future__ import annotations

import bentoml

from offpath.profiling.servers.services.settings import ServiceSettings

SETTINGS = ServiceSettings.from_environment()
# Two lines a request otherwise.
QUIET = {"access": {"enabled": False}}
# By default the front service closes all its connections after 100 requests, those with a request
# in flight as well (_bentoml_impl/client/proxy2.py: SessionManager): each is a 500 to its client.
KEEP_CONNECTIONS = {"max_requests": 2**31, "max_age": 1e9}
TRAFFIC = {"timeout": SETTINGS.timeout_s}


@bentoml.service(
    workers=SETTINGS.workers,
    traffic=TRAFFIC,
    logging=QUIET,
    runner_connection=KEEP_CONNECTIONS,
)
class Classifier:
    """The model; one process a worker."""

    def __init__(self) -> None:
        self.classify_batch = SETTINGS.load_classifier()

    @bentoml.api(
        batchable=True,
        max_batch_size=SETTINGS.batch_size,
        # Not a wait: requests that would take longer get 503.
        max_latency_ms=SETTINGS.timeout_s * 1000,
    )
    def classify(self, pictures: list[bytes]) -> list[dict[str, float]]:
        """A batch, gathered by BentoML's dispatcher."""
        return self.classify_batch(pictures)


@bentoml.service(traffic=TRAFFIC, logging=QUIET)
class Front:
    """The HTTP side."""

    classifier = bentoml.depends(Classifier)

    @bentoml.api
    async def classify(self, picture: bytes, /) -> dict[str, float]:
        """One request; a positional-only argument is the raw body."""
        return (await self.classifier.to_async.classify([picture]))[0]
