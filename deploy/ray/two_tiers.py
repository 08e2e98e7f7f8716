"""A Ray Serve application of two tiers: decoders on CPUs before the model's replicas.

A decoder receives the file and makes the model's square of it (150 kB where a photograph has a
megabyte), or refuses it; a model's replica (deployment.py) gathers squares into batches. Each
answer is recorded once, where it is made.
"""

# What it imports is installed where Ray is.
# mypy: ignore-errors

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from deployment import Classifier
from edge import FOLDER, SETTINGS, make_response, read_request, refuse
from ray import serve
from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle
from series import RaySeries
from starlette.requests import Request as HttpRequest
from starlette.responses import Response


@serve.deployment
class Decoder:
    """A replica without the model.

    Args:
        models: the replicas with it.
    """

    def __init__(self, models: DeploymentHandle) -> None:
        from archived_decoder import ArchivedDecoder

        self._models = models
        self._decoder = ArchivedDecoder(FOLDER / "archive", make_series=RaySeries)
        self._threads = ThreadPoolExecutor(SETTINGS["decode_threads"], "decode")

    async def __call__(self, http: HttpRequest) -> Response:
        """Answers one request."""
        from archived_handler import Answer

        request = await read_request(http)
        if isinstance(request, Response):
            return request
        loop = asyncio.get_running_loop()
        made = await loop.run_in_executor(self._threads, self._decoder.decode, request)
        if isinstance(made, Answer):
            return make_response(made)
        try:
            answer = await self._models.answer.remote(replace(request, body=made))
        except RayError:
            # Its replica died. Not sent again: it may have been recorded already.
            return refuse(503, "ModelGone", "the model's process ended; send it again")
        return make_response(answer)

    async def __del__(self) -> None:
        """Ray calls this at a graceful end: the prediction log ships what it has."""
        if hasattr(self, "_decoder"):
            await asyncio.to_thread(self._decoder.close)


app = Decoder.bind(Classifier.bind())
