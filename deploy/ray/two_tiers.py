"""A Ray Serve application in two tiers: decoders on CPUs, then the replicas with the model.

A decoder receives the file, and refuses it or makes the model's input from it (150 kB for a
photograph of a megabyte). A replica with the model (deployment.py) collects these inputs into
batches. The tier that makes an answer also records it, once.
"""

# Its imports exist only where Ray is installed.
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from deployment import Classifier
from ray import serve
from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle
from ray_http import FOLDER, SETTINGS, make_refusal, make_response, read_request
from ray_metrics import RayMetric
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from torchserve_http import MODEL_GONE

if TYPE_CHECKING:
    from offpath.serving.shell.archived_handler import Request


@serve.deployment
class Decoder:
    """A replica without the model.

    Args:
        models: handle of the replicas with the model.
    """

    def __init__(self, models: DeploymentHandle) -> None:
        from archived_decoder import ArchivedDecoder

        self._models = models
        self._decoder = ArchivedDecoder(FOLDER / "archive", make_metric=RayMetric)
        self._threads = ThreadPoolExecutor(SETTINGS["decode_threads"], "decode")

    async def __call__(self, http: HttpRequest) -> Response:
        """Answers one HTTP request."""
        began_s = time.monotonic()
        request = await read_request(http)
        if isinstance(request, Response):
            return request
        response = await self._classify(request)
        took_s = time.monotonic() - began_s
        self._decoder.count_requests(response.status_code, took_s)
        return response

    async def _classify(self, request: Request) -> Response:
        from archived_handler import Answer

        loop = asyncio.get_running_loop()
        made = await loop.run_in_executor(self._threads, self._decoder.decode, request)
        if isinstance(made, Answer):
            return make_response(made)
        try:
            answer = await self._models.answer.remote(replace(request, body=made))
        except RayError:
            # The replica died. A second attempt could record the request twice.
            return make_refusal(MODEL_GONE)
        return make_response(answer)

    async def __del__(self) -> None:
        """Uploads the rest of the prediction log; Ray calls this at a graceful stop."""
        if hasattr(self, "_decoder"):
            await asyncio.to_thread(self._decoder.close)


app = Decoder.bind(Classifier.bind())
