"""A Ray Serve application: HTTP in, batches to the archive beside this file, HTTP out.

The event loop only receives and sends; decoding and the model run in the one thread of `Batches`.
"""

# What it imports is installed where Ray is.
# mypy: ignore-errors

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import ray
from batches import Batches
from edge import FOLDER, SETTINGS, make_response, read_request
from ray import serve
from series import RaySeries
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

if TYPE_CHECKING:
    from offpath.deploy.archived_handler import Answer, Request


@serve.deployment
class Classifier:
    """A replica; how many, and on what, stands in config.yaml."""

    def __init__(self) -> None:
        # Here: whoever only reads the configuration needs neither torch nor the archive.
        from archived_handler import ArchivedHandler

        gpus = ray.get_gpu_ids()
        self._handler = ArchivedHandler(
            FOLDER / "archive",
            batch_size=SETTINGS["batch_size"],
            # Ray shows a replica its own devices alone, numbered from 0.
            gpu=0 if gpus else None,
            threads=SETTINGS["threads"],
            make_series=RaySeries,
        )
        # One thread: the handler takes a batch at a time, and decodes in threads of its own.
        self._batches = Batches(
            self._handler.handle,
            SETTINGS["batch_size"],
            SETTINGS["max_batch_delay_ms"] / 1000,
        )

    async def __call__(self, http: HttpRequest) -> Response:
        """Answers one request."""
        request = await read_request(http)
        if isinstance(request, Response):
            return request
        return make_response(await self.answer(request))

    async def answer(self, request: Request) -> Answer:
        """One request in a batch with others; from a decoder (two_tiers.py) too."""
        return await self._batches.answer(request)

    async def check_health(self) -> None:
        """Ray asks every few seconds, and ends a replica that raises three times.

        The event loop goes on answering while the model hangs: TorchServe's bound holds here too.
        """
        running_s = self._batches.running_s
        if running_s > SETTINGS["response_timeout_s"]:
            raise RuntimeError(f"a batch has been running for {running_s:.0f} s")

    async def __del__(self) -> None:
        """Ray calls this at a graceful end: the prediction log ships what it has."""
        if hasattr(self, "_batches"):
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._batches.close()
        self._handler.close()


app = Classifier.bind()
