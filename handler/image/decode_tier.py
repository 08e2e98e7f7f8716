"""Decodes for models on other hosts: everything up to the model's square, and the refusals.

The other half of `classifier.py`, in processes of its own (docs/after-torchserve.md). What is
refused here is answered here, recorded and counted; what is good is answered, recorded and counted
where the model is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ItemError
from offpath.handler.image.decoded import Decoded
from offpath.handler.image.prepare import SquareMaker
from offpath.handler.image.quiet_decoders import silence_decoders
from offpath.handler.metrics import MetricsEmitter
from offpath.handler.pipeline import Batch, Item, set_threads, without_frames
from offpath.handler.prediction_log import open_prediction_log
from offpath.handler.prediction_log.batch_records import (
    RequestContext,
    hash_payload,
    make_records,
)
from offpath.handler.process.allocator import keep_freed_memory
from offpath.handler.request.payload import read_payload
from offpath.handler.response import Reply, encode_error
from offpath.handler.stages import BatchTimings, Stage, StageTimer


class DecodeTier:
    """What a process without a model does with a request; called from several threads.

    Args:
        config: the archive's settings.
        model, version: whose pictures these are, for records and metrics.
        metrics: TorchServe's metrics cache, or what stands in its place.
    """

    def __init__(
        self, config: HandlerConfig, model: str, version: str, metrics: Any
    ) -> None:
        silence_decoders()
        keep_freed_memory()
        # Threads decode a picture each; none is shared out further.
        set_threads(1)
        self._config, self._version = config, version
        self._squares = SquareMaker(config)
        self._log = open_prediction_log(
            config.prediction_log, model=model, version=version
        )
        self._log_lock = threading.Lock()
        is_off = config.prediction_log.is_off
        self._metrics = MetricsEmitter(
            metrics,
            model,
            config.metrics_interval_s,
            None if is_off else self._log.counters,
        )
        self._metrics.start()

    def decode(
        self, row: Mapping[str, Any], context: RequestContext
    ) -> tuple[Decoded | Reply, BatchTimings]:
        """Decodes one request.

        Args:
            row: as TorchServe's; see payload.py.
            context: of this request alone, index 0.

        Returns:
            the square, or the refusal that is the answer; and what it took.
        """
        item, timer = Item(), StageTimer()
        try:
            with timer.stage(Stage.READ):
                item.payload = read_payload(row, self._config.max_payload_bytes)
            decoded = self._make_square(item, timer)
        except ItemError as error:
            item.error = without_frames(error)
            return self._refuse(item, item.error, timer, context)
        timings = timer.read()
        self._metrics.count_stages(timings)
        return decoded, timings

    def _make_square(self, item: Item, timer: StageTimer) -> Decoded:
        payload = item.payload or b""
        start = time.perf_counter()
        pixels, decoded = self._squares.make(payload)
        timer.seconds[Stage.DECODE] = decoded - start
        timer.seconds[Stage.TRANSFORM] = time.perf_counter() - decoded
        digest = hash_payload(payload, self._config.prediction_log)
        spent = {stage: value for stage, value in timer.seconds.items() if value}
        return Decoded(pixels, len(payload), digest, spent)

    def _refuse(
        self, item: Item, error: ItemError, timer: StageTimer, context: RequestContext
    ) -> tuple[Reply, BatchTimings]:
        batch, timings = Batch([item], timer), timer.read()
        settings = self._config.prediction_log
        if not settings.is_off:
            with timer.stage(Stage.LOG), self._log_lock:
                self._log.append(
                    make_records(batch, context, settings, self._version, timings)
                )
        self._metrics.count_batch(timer.read(), 1, [error.type])
        return encode_error(error), timings

    def close(self) -> None:
        """Writes the last metrics; the prediction log ships what it can in a few seconds."""
        self._metrics.stop()
        self._log.close()
