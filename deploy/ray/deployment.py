"""A Ray Serve application that answers HTTP requests with the archive beside this file.

The event loop only receives and sends. Decoding and the model run in the thread of `BatchQueue`.
"""

# Its imports exist only where Ray is installed.
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import time

import ray
from batch_queue import BatchQueue
from ray import serve
from ray_http import FOLDER, SETTINGS, make_response, read_request
from ray_metrics import RayMetric
from starlette.requests import Request as HttpRequest
from starlette.responses import Response


@serve.deployment
class Classifier:
    """A replica with the model; config.yaml sets the number of replicas and their resources."""

    def __init__(self) -> None:
        # Imported here, because Ray's controller reads the configuration without torch.
        from archived_handler import ArchivedHandler

        gpus = ray.get_gpu_ids()
        self._handler = ArchivedHandler(
            FOLDER / "archive",
            batch_size=SETTINGS["batch_size"],
            # Ray shows a replica only its own devices, numbered from 0.
            gpu=0 if gpus else None,
            threads=SETTINGS["threads"],
            make_metric=RayMetric,
        )
        # The handler takes one batch at a time, and decodes in its own threads.
        self._batches = BatchQueue(
            self._handler.handle,
            SETTINGS["batch_size"],
            SETTINGS["max_batch_delay_ms"] / 1000,
        )

    async def __call__(self, http: HttpRequest) -> Response:
        began_s = time.monotonic()
        request = await read_request(http)
        if isinstance(request, Response):
            return request
        answer = await self._batches.answer(request)
        self._handler.count_requests(answer.status, time.monotonic() - began_s)
        return make_response(answer)

    async def check_health(self) -> None:
        """Raises if the model is broken, or a batch takes longer than TorchServe would allow.

        Ray calls this every few seconds, and ends a replica after three errors. The event loop
        keeps running while the model hangs, so Ray would not notice otherwise.
        """
        if self._handler.diagnosis is not None:
            raise RuntimeError(f"the model is broken: {self._handler.diagnosis}")
        running_s = self._batches.running_s
        if running_s > SETTINGS["response_timeout_s"]:
            raise RuntimeError(f"a batch has been running for {running_s:.0f} s")

    async def __del__(self) -> None:
        """Uploads the rest of the prediction log; Ray calls this at a graceful stop."""
        if hasattr(self, "_batches"):
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._batches.close()
        self._handler.close()


app = Classifier.bind()
