"""BentoML: a front service that takes the request, a batching service with the model behind it.

A batchable method takes a list from each client; the documented way to one photograph per request
is a second service in front.
"""

from __future__ import annotations

from typing import Any

from offpath.profiling.servers.adapter import PackagedAdapter, ServiceSettings, Start, is_service
from offpath.profiling.servers.environments import Environment
from offpath.profiling.servers.server_process import LOOPBACK


class BentoML(PackagedAdapter):
    """BentoML with one worker per core."""

    name = "bentoml"
    environment = Environment(
        "bentoml",
        (
            "bentoml==1.4.39",
            # What it serves with and calls its own services with; left open they would make another
            # server of it each month.
            "aiohttp==3.14.5",
            "starlette==1.10.0",
            "uvicorn==0.54.0",
        ),
        size_mb=50,
    )
    predict_path, ready_path = "/classify", "/readyz"
    # The front service answers before the workers behind it are there.
    ready_line = "Service Classifier initialized"
    # The other processes are the front service and the supervisor.
    worker_mark = "--service-name Classifier"

    @property
    def settings(self) -> dict[str, Any]:
        # Its dispatcher sets the delay itself, from what it has seen.
        return super().settings | {"max_batch_delay_ms": "adaptive"}

    def make_command(self, start: Start) -> list[str]:
        return [
            *(str(start.python), "-m", "bentoml", "serve", f"{__name__}:Front"),
            *("--host", LOOPBACK, "--port", str(start.port)),
        ]

    def make_environment(self, start: Start) -> dict[str, str]:
        # No usage reports, no store in the user's home.
        return super().make_environment(start) | {
            "BENTOML_DO_NOT_TRACK": "True",
            "BENTOML_HOME": str(start.scratch / "bentoml"),
        }


if is_service():
    import bentoml

    SETTINGS = ServiceSettings.from_environment()
    # By default it logs two lines per request.
    QUIET = {"access": {"enabled": False}}
    # By default the front service closes all its connections after 100 requests, also those with a
    # request in flight (_bentoml_impl/client/proxy2.py: SessionManager): each is a 500 to its
    # client.
    KEEP_CONNECTIONS = {"max_requests": 2**31, "max_age": 1e9}
    TRAFFIC = {"timeout": SETTINGS.timeout_s}

    @bentoml.service(
        workers=SETTINGS.workers,
        traffic=TRAFFIC,
        logging=QUIET,
        runner_connection=KEEP_CONNECTIONS,
    )
    class Classifier:
        """The model; one process per worker."""

        def __init__(self) -> None:
            self.classify_batch = SETTINGS.load_classifier()

        @bentoml.api(  # type: ignore[untyped-decorator]
            batchable=True,
            max_batch_size=SETTINGS.batch_size,
            # Not a wait: requests that would take longer get 503.
            max_latency_ms=SETTINGS.timeout_s * 1000,
        )
        def classify(self, images: list[bytes]) -> list[dict[str, float]]:
            return self.classify_batch(images)

    @bentoml.service(traffic=TRAFFIC, logging=QUIET)
    class Front:
        """The HTTP side."""

        classifier = bentoml.depends(Classifier)

        @bentoml.api  # type: ignore[untyped-decorator]
        async def classify(self, image: bytes, /) -> dict[str, float]:
            """Answers one request; a positional-only argument is the raw body."""
            (answer,) = await self.classifier.to_async.classify([image])
            labels: dict[str, float] = answer
            return labels
