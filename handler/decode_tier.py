"""Decodes for models on other hosts: everything up to the model's input, including refusals.

A decode tier is the first half of `classifier.py` in a separate process (docs/after-torchserve.md).
It answers, records and counts the requests that it refuses. The others are answered, recorded and
counted where the model is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from offpath.handler.config import HandlerConfig
from offpath.handler.deadline import Deadlines
from offpath.handler.errors import ItemError, without_frames
from offpath.handler.image.input_maker import InputMaker, silence_decoders
from offpath.handler.metrics import MetricsEmitter
from offpath.handler.pipeline import Batch, Item, PreparedInput, set_threads
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
    """Handles requests in a process without a model; called from several threads.

    Args:
        config: the archive's settings.
        model, version: name and version of the model, for records and metrics.
        metrics: TorchServe's metrics cache, or an object with the same methods.
    """

    def __init__(self, config: HandlerConfig, model: str, version: str, metrics: Any) -> None:
        silence_decoders()
        keep_freed_memory()
        # Each thread decodes one picture; a picture is not split among threads.
        set_threads(1)
        self._config, self._version = config, version
        self._input_maker = InputMaker(config)
        self._deadlines = Deadlines(config.deadline_ms)
        self._log = open_prediction_log(config.prediction_log, model=model, version=version)
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
    ) -> tuple[PreparedInput | Reply, BatchTimings]:
        """Decodes one request.

        Args:
            row: parameters as in TorchServe's rows; see payload.py.
            context: context of this one request, at index 0.

        Returns:
            the model's input, or the reply to a refused request; and the time it took.
        """
        item, timer = Item(), StageTimer()
        headers = context.get_all_request_header(0)
        (row,) = self._deadlines.refuse_late([row], [headers])
        try:
            if isinstance(row.get("body"), ItemError):
                raise row["body"]
            with timer.stage(Stage.READ):
                item.payload = read_payload(row, self._config.max_payload_bytes)
            prepared = self._prepare(item, timer)
        except ItemError as error:
            item.error = without_frames(error)
            return self._refuse(item, item.error, timer, context)
        timings = timer.read()
        self._metrics.count_stages(timings)
        return prepared, timings

    def count_requests(self, status: int, seconds: float) -> None:
        """Counts the time of an answered request."""
        self._metrics.count_requests(status, seconds)

    def _prepare(self, item: Item, timer: StageTimer) -> PreparedInput:
        payload = item.payload or b""
        start = time.perf_counter()
        pixels, decoded = self._input_maker.make(payload)
        timer.seconds[Stage.DECODE] = decoded - start
        timer.seconds[Stage.TRANSFORM] = time.perf_counter() - decoded
        digest = hash_payload(payload, self._config.prediction_log)
        spent = {stage: value for stage, value in timer.seconds.items() if value}
        return PreparedInput(pixels, len(payload), digest, spent)

    def _refuse(
        self, item: Item, error: ItemError, timer: StageTimer, context: RequestContext
    ) -> tuple[Reply, BatchTimings]:
        batch, timings = Batch([item], timer), timer.read()
        settings = self._config.prediction_log
        if not settings.is_off:
            with timer.stage(Stage.LOG), self._log_lock:
                self._log.append(make_records(batch, context, settings, self._version, timings))
        self._metrics.count_batch(timer.read(), 1, [error.type])
        return encode_error(error), timings

    def close(self) -> None:
        """Writes the last metrics; the prediction log ships what it can in a few seconds."""
        self._metrics.stop()
        self._log.close()
