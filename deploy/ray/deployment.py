"""A Ray Serve application that answers TorchServe's HTTP with the archive beside this file.

Everything but Ray's own forms of requests, replies and metrics is in `ModelService`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import ray
from ray import serve
from ray.serve.metrics import Counter, Gauge
from starlette.requests import Request
from starlette.responses import Response

from offpath.handler.wire_names import REQUEST_ID_HEADER

FOLDER = Path(__file__).parent


@serve.deployment
class Classifier:
    """A replica with the model; config.yaml sets the number of replicas and their resources."""

    def __init__(self) -> None:
        # Imported here, because Ray's controller reads the configuration without torch.
        from offpath.serving.service.model_service import load_service

        self._service = load_service(
            FOLDER / "archive",
            json.loads((FOLDER / "settings.json").read_text(encoding="utf-8")),
            # Ray shows a replica only its own devices, numbered from 0.
            gpu=0 if ray.get_gpu_ids() else None,
            publish=RayMetrics(),
        )

    async def __call__(self, http: Request) -> Response:
        headers = dict(http.headers)
        given = headers.get(REQUEST_ID_HEADER, "")
        reply = await self._service.answer(
            http.method, http.scope["path"], headers, http.stream(), given
        )
        # Ray sets this header itself, to the id with which ours begins.
        reply.headers.pop(REQUEST_ID_HEADER, None)
        return Response(reply.body, reply.status, reply.headers)

    async def check_health(self) -> None:
        """Raises if this replica must be replaced.

        Ray calls this every few seconds, and ends a replica after three errors. The event loop
        keeps running while the model hangs, so Ray would not notice otherwise.
        """
        if self._service.health is not None:
            raise RuntimeError(f"this replica must be replaced: {self._service.health}")

    async def __del__(self) -> None:
        """Uploads the rest of the prediction log; Ray calls this at a graceful stop."""
        if hasattr(self, "_service"):
            await asyncio.to_thread(self._service.close)


class RayMetrics:
    """Publishes the classifier's metrics on Ray's page, labelled with deployment and replica."""

    def __init__(self) -> None:
        self._metrics: dict[str, Counter | Gauge] = {}

    def __call__(
        self, name: str, value: float, is_counter: bool, labels: Mapping[str, str]
    ) -> None:
        metric = self._metrics.get(name)
        if metric is None:
            # Ray appends `_total` to the name of a counter, and prepends `ray_`.
            metric = (Counter if is_counter else Gauge)(
                name.removesuffix("_total") if is_counter else name,
                description=f"{name}, see docs/reference.md",
                tag_keys=tuple(labels),
            )
            self._metrics[name] = metric
        if not is_counter:
            metric.set(value, tags=dict(labels))
        elif value > 0:  # Ray refuses the 0 that makes a counter visible from the start elsewhere
            metric.inc(value, tags=dict(labels))


# Ray turns the class into a deployment.
app = Classifier.bind()  # type: ignore[attr-defined]
