"""Drives a loaded handler: batches of requests as TorchServe hands them over, one after the other.

The same photographs in the same order for every handler of a run; each body is a fresh bytearray,
which is what the worker's protocol gives. Only `handle` is inside the clock.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from offpath.handler.errors import ExpectedError
from offpath.profiling.profilers.loaded_handler import LoadedHandler
from offpath.profiling.profilers.samples import BatchSample

Clock = Callable[[], float]
Seconds = dict[str, float]


class Collector:
    """Looks on while batches are handled; this one sees nothing, as in the warm-up."""

    def watching(self) -> AbstractContextManager[None]:
        """Is entered around each call of `handle`."""
        return nullcontext()

    def take_batch(self) -> tuple[Seconds, Seconds]:
        """Seconds by stage of the batch that just ended: of the host, of the accelerator.

        Who watches functions or lines has none: clocks in the handler would be watched as well.
        """
        return {}, {}

    def finish(
        self, shorten: Callable[[str], str], path: Path | None
    ) -> dict[str, list[dict[str, Any]]]:
        """Writes `path` where it has a file of its own; its samples under their kind's name."""
        return {}


class Driver:
    """Sends batches to one handler.

    Args:
        handler: loaded and initialised.
        pictures: files' bytes.
        batch_size: requests a batch.
        seed: of the pictures' order and the request ids.
        clock: seconds.
    """

    def __init__(
        self,
        handler: LoadedHandler,
        pictures: Sequence[bytes],
        batch_size: int,
        seed: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._handler = handler
        self._batch_size = batch_size
        self._clock = clock
        self._requests = make_requests(pictures, seed)
        self.refused = 0

    def run(self, batches: int, collector: Collector) -> Iterator[BatchSample]:
        """Handles `batches` batches, one at a time, as they are asked for.

        Raises:
            ExpectedError: the handler answers something else than one reply per request.
            Whatever the handler raises passes through.
        """
        for _ in range(batches):
            yield self._handle(collector)

    def _handle(self, collector: Collector) -> BatchSample:
        rows = self._next_rows()
        context = self._handler.context
        with collector.watching():
            start = self._clock()
            replies = self._handler.entry(rows, context)
            total_s = self._clock() - start
        self._check(replies, len(rows))
        stages_s, device_s = collector.take_batch()
        return BatchSample(len(rows), total_s, stages_s, device_s)

    def _next_rows(self) -> list[dict[str, Any]]:
        """Prepares the context for the next batch, as ts/service.py does before each call."""
        from ts.service import Service

        batch = list(itertools.islice(self._requests, self._batch_size))
        headers, rows, ids = Service.retrieve_data_for_inference(batch)
        context = self._handler.context
        context.request_ids = ids
        context.request_processor = headers
        context.metrics.request_ids = ids
        context.cl_socket = None
        return list(rows)

    def _check(self, replies: object, count: int) -> None:
        if not isinstance(replies, list) or len(replies) != count:
            found = (
                f"{len(replies)} replies"
                if isinstance(replies, list)
                else f"{replies!r}"
            )
            raise ExpectedError(
                f"the handler answered {count} requests with {found[:200]}; expected a list of"
                f" {count}"
            )
        processors = self._handler.context.request_processor
        self.refused += sum(
            processor.get_response_status_code() not in (None, 200)
            for processor in processors
        )


def make_requests(pictures: Sequence[bytes], seed: int) -> Iterator[dict[str, Any]]:
    """Requests as ts/protocol/otf_message_handler.py decodes them, without end."""
    chance = random.Random(seed)
    order = chance.sample(range(len(pictures)), len(pictures))
    for index in itertools.cycle(order):
        request_id = uuid.UUID(int=chance.getrandbits(128), version=4)
        body = bytearray(pictures[index])
        yield {
            "requestId": str(request_id).encode(),
            "headers": [{"name": b"content-type", "value": b"image/jpeg"}],
            "parameters": [
                {"name": "body", "contentType": "image/jpeg", "value": body}
            ],
        }
