"""Runs a batch of payloads through all stages, without knowing TorchServe.

The profiler, the tests and other servers run the same code from a plain Python process.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import BatchOutOfTime, ItemError, ModelFailed, without_frames
from offpath.handler.image.formats import Payload
from offpath.handler.image.nvjpeg import DecodeTogether, DeviceDecoder, find_nvjpeg
from offpath.handler.input_maker import InputMaker, silence_decoders
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.request.body_from_front_door import Row
from offpath.handler.request.payload import read_payload
from offpath.handler.response import EncodedReply, encode_error, encode_prediction
from offpath.handler.stages import Stage, StageTimer

NOT_FINITE = (
    "the model's scores are not finite (NaN or infinity); check the weights, and the"
    " precision if it is fp16"
)


@dataclass(slots=True)
class Item:
    """One request of a batch, on its way to a reply.

    Attributes:
        payload: the image's bytes; None if the row held none.
        error: set by the first stage that fails on this item.
        index: place of the image in the batch buffer; None before it has one.
        predictions: (label, score), best first.
        outputs: the model's raw outputs, float32 [1, classes]; only for a custom handler.
        extra: a custom handler's addition to the record of the prediction log.
    """

    payload: Payload | None = None
    error: ItemError | None = None
    index: int | None = None
    predictions: list[tuple[str, float]] = field(default_factory=list)
    outputs: torch.Tensor | None = None
    extra: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Batch:
    """The items of one call of `handle`, with their timer."""

    items: list[Item]
    timer: StageTimer
    # Images that the CPU decoded because the device had no memory for them.
    without_memory: int = 0

    def good(self) -> list[Item]:
        return [item for item in self.items if item.error is None]


class Pipeline:
    """The request path's stages over one batch runner.

    Args:
        labels: class index -> label; a class without a label is named by its index.
        threads: decode threads; 1 decodes on the calling thread.
        decode_together: decodes a batch's JPEGs on the runner's device; by default nvjpeg, if the
            settings ask for it and it works.
        batch_s: seconds after which no further image of a batch is decoded; 0 is no limit. Later
            items get a 503, because TorchServe ends the worker at `responseTimeout`.
    """

    def __init__(
        self,
        config: HandlerConfig,
        runner: BatchRunner,
        labels: Mapping[int, str],
        threads: int,
        decode_together: DecodeTogether | None = None,
        batch_s: float = 0.0,
    ) -> None:
        silence_decoders()
        self.config = config
        self.runner = runner
        self._labels = labels
        threshold = config.threshold
        # Without a threshold all finite scores are answered: a model may mask classes by -inf.
        self._least = -sys.float_info.max if threshold is None else threshold
        self._geometry = config.input_geometry
        self._batch_s = batch_s or math.inf
        self._end_s = math.inf
        self._input_maker = InputMaker(config)
        if decode_together is None and config.decode == "nvjpeg":
            decode_together = find_nvjpeg(runner.device)
        self._device_decoder = None
        if decode_together is not None:
            self._device_decoder = DeviceDecoder(
                decode_together, config.decode_options, self._geometry
            )
        self._threads = threads
        # The calling thread decodes too. A thread of the pool starts when it is first needed.
        self._pool = ThreadPoolExecutor(max(1, threads - 1), "decode")

    @property
    def decode_mode(self) -> str:
        """The setting `decode`, or "scaled" if nvjpeg was asked for but does not work."""
        is_missing = self.config.decode == "nvjpeg" and self._device_decoder is None
        return "scaled" if is_missing else self.config.decode

    def classify(self, rows: Sequence[Row | ItemError]) -> list[EncodedReply]:
        """Runs all stages in turn, as `handle` does, without TorchServe."""
        return self.postprocess(self.inference(self.preprocess(rows)))

    def preprocess(self, rows: Sequence[Row | ItemError]) -> Batch:
        """Decodes rows into the batch buffer; a bad row becomes an item with an error."""
        batch = Batch([Item() for _ in rows], StageTimer())
        self._end_s = time.perf_counter() + self._batch_s
        with batch.timer.stage(Stage.READ):
            for row, item in zip(rows, batch.items):
                self._read(row, item)
        good = batch.good()
        self.runner.begin(len(good))
        for index, item in enumerate(good):
            item.index = index
        self._decode_all(good, batch)
        return batch

    def inference(self, batch: Batch) -> Batch:
        """Adds predictions to the items without an error, or an error if they are not finite.

        Raises:
            FloatingPointError: no item has a finite score, so the model itself is probably broken.
        """
        good = batch.good()
        if not good:
            return batch
        # An item that failed to decode leaves a stale image in its place; its result is not used.
        count = 1 + max(item.index for item in good if item.index is not None)
        top_k = self.runner.run(count, batch.timer)
        with batch.timer.stage(Stage.POSTPROCESS):
            probabilities, classes = (
                top_k.probabilities.tolist(),
                top_k.classes.tolist(),
            )
            # A NaN counts as the best score.
            if not any(math.isfinite(probabilities[item.index][0]) for item in good):
                raise FloatingPointError(NOT_FINITE)
            for item in good:
                if not math.isfinite(probabilities[item.index][0]):
                    item.error = ModelFailed("the model's score for this image is not finite")
                    continue
                row = zip(classes[item.index], probabilities[item.index])
                item.predictions = [
                    (self._labels.get(c, str(c)), p) for c, p in row if p >= self._least
                ]
                if top_k.outputs is not None:
                    item.outputs = top_k.outputs[[item.index]]
        return batch

    def postprocess(self, batch: Batch) -> list[EncodedReply]:
        with batch.timer.stage(Stage.POSTPROCESS):
            return [
                (encode_error(item.error) if item.error else encode_prediction(item.predictions))
                for item in batch.items
            ]

    def warm_up(self, payloads: Sequence[Payload]) -> None:
        """Runs every batch size once, and the given payloads through every stage."""
        self.runner.warm_up()
        for payload in payloads:
            self.classify([{"body": payload}])

    def _read(self, row: Row | ItemError, item: Item) -> None:
        if isinstance(row, ItemError):  # refused before it was read
            item.error = row
            return
        try:
            item.payload = read_payload(row, self.config.max_payload_bytes)
        except ItemError as error:
            item.error = without_frames(error)

    def _decode_all(self, items: Sequence[Item], batch: Batch) -> None:
        shares = {Stage.DECODE: 0.0, Stage.TRANSFORM: 0.0}
        with batch.timer.shared(shares):
            if self._device_decoder is not None:
                items, decode_s, transform_s = self._decode_on_device(items, self._device_decoder)
                batch.without_memory = self._device_decoder.without_memory
                shares[Stage.DECODE] += decode_s
                shares[Stage.TRANSFORM] += transform_s
            for decode_s, transform_s in self._decode_on_threads(items):
                shares[Stage.DECODE] += decode_s
                shares[Stage.TRANSFORM] += transform_s

    def _decode_on_threads(self, items: Sequence[Item]) -> list[tuple[float, float]]:
        """Decodes items on the calling thread and its helpers; returns each item's seconds.

        Each thread takes the next item when it is done with one. A future per item would wake two
        threads per image, which costs up to 0.2 ms of CPU.
        """
        waiting = iter(items)  # threads may share a list's iterator

        def decode_some() -> list[tuple[float, float]]:
            return [self._decode(item) for item in waiting]

        count = min(self._threads, len(items)) - 1
        helpers = [self._pool.submit(decode_some) for _ in range(count)]
        try:
            seconds = decode_some()
        finally:
            wait(helpers)  # so that none still writes into the next batch
        return seconds + [pair for helper in helpers for pair in helper.result()]

    def _decode_on_device(
        self, items: Sequence[Item], decoder: DeviceDecoder
    ) -> tuple[list[Item], float, float]:
        """Decodes and resizes on the device, as far as it can, into the batch.

        Returns:
            the items that are left to the CPU, and the seconds spent decoding and transforming.
        """
        start = time.perf_counter()
        payloads = [item.payload or b"" for item in items]
        images = decoder.decode(payloads)
        decoded = time.perf_counter()
        left = []
        for item, pixels in zip(items, decoder.resize(images)):
            if pixels is None or item.index is None:
                left.append(item)
            else:
                self.runner.put_from_device(item.index, pixels)
        return left, decoded - start, time.perf_counter() - decoded

    def _decode(self, item: Item) -> tuple[float, float]:
        """Decodes and resizes one item into the batch.

        Returns:
            seconds spent decoding and transforming, by this thread's clock.
        """
        start = decoded = time.perf_counter()
        try:
            decoded = self._decode_into_batch(item, start)
        except ItemError as error:
            item.error = without_frames(error)
            decoded = time.perf_counter()  # only decoding raises
        return decoded - start, time.perf_counter() - decoded

    def _decode_into_batch(self, item: Item, start: float) -> float:
        payload, index = item.payload, item.index
        if payload is None or index is None:
            raise RuntimeError("the decoder got an item without a payload or a place")
        if start > self._end_s:
            raise BatchOutOfTime(
                "the other images of the batch took too long; send the request again"
            )
        pixels, decoded = self._input_maker.make(payload)
        self.runner.pixels[index] = pixels
        return decoded


def set_threads(threads: int) -> None:
    """Sets torch's threads for this process.

    torch's default is all cores in every worker, which oversubscribes the machine with two workers.
    """
    torch.set_num_threads(threads)
    with contextlib.suppress(RuntimeError):  # possible only once; the first value stays
        torch.set_num_interop_threads(1)
