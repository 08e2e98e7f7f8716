"""Payloads -> predictions. Knows nothing of TorchServe: the profiler, the tests and other servers
run the same code from a plain Python process."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import BadTensor, BatchOutOfTime, ItemError
from offpath.handler.image.decoded import Decoded
from offpath.handler.image.nvjpeg import DecodeTogether, decode_on_device, find_nvjpeg
from offpath.handler.image.prepare import SquareMaker
from offpath.handler.image.quiet_decoders import silence_decoders
from offpath.handler.image.resample import transform_on_device
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.request.payload import Payload, read_payload
from offpath.handler.response import Reply, encode_error, encode_prediction
from offpath.handler.stages import Stage, StageTimer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Item:
    """One request of a batch, on its way to a reply.

    Attributes:
        payload: the image's bytes; None where the row held none.
        decoded: in its place, where another process has decoded it.
        error: set by the first stage that cannot go on with it.
        index: its picture's place in the batch buffer, when it got that far.
        predictions: (label, score), best first.
        extra: what a handler of one's own adds to its record.
    """

    payload: Payload | None = None
    decoded: Decoded | None = None
    error: ItemError | None = None
    index: int | None = None
    predictions: list[tuple[str, float]] = field(default_factory=list)
    extra: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Batch:
    """The items of one call of `handle` with their clock."""

    items: list[Item]
    timer: StageTimer

    def good(self) -> list[Item]:
        """Items without an error so far."""
        return [item for item in self.items if item.error is None]


class Pipeline:
    """The request path's stages over one batch runner.

    Args:
        config: the checked settings.
        runner: the model on its device.
        labels: class index -> label; a class without one is called by its index.
        threads: decode threads; 1 decodes on the calling thread.
        batch_s: no picture of a batch begins to be decoded later than this; 0: however late. Beyond
            it the item gets a 503: at `responseTimeout` TorchServe would end the worker.
        decode_together: decodes a batch's JPEGs on the runner's device; nvjpeg by default, where
            the settings ask for it and it works.
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
        self._least = -math.inf if threshold is None else threshold
        self._options, self._square = config.decode_options, config.square
        self._batch_s = batch_s or math.inf
        self._end_s = math.inf
        self._squares = SquareMaker(config)
        if decode_together is None and config.decode == "nvjpeg":
            decode_together = find_nvjpeg(runner.device)
        self._decode_together = decode_together
        # With one thread a pool would only add a hand-over (537 -> 600 requests/s without it).
        self._pool = ThreadPoolExecutor(threads, "decode") if threads > 1 else None

    @property
    def decode_mode(self) -> str:
        """The setting `decode`, but "scaled" where nvjpeg was asked for and does not work."""
        is_left_out = self.config.decode == "nvjpeg" and self._decode_together is None
        return "scaled" if is_left_out else self.config.decode

    def classify(self, rows: Sequence[Mapping[str, Any]]) -> list[Reply]:
        """All stages in turn; what `handle` does, without TorchServe."""
        return self.postprocess(self.inference(self.preprocess(rows)))

    def preprocess(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Rows -> pictures in the batch buffer; a bad row becomes an item with an error."""
        batch = Batch([Item() for _ in rows], StageTimer())
        self._end_s = time.perf_counter() + self._batch_s
        with batch.timer.stage(Stage.READ):
            for row, item in zip(rows, batch.items):
                self._read(row, item)
        good = batch.good()
        self.runner.grow(len(good))
        for index, item in enumerate(good):
            item.index = index
        self._decode_all(good, batch.timer)
        return batch

    def inference(self, batch: Batch) -> Batch:
        """Pictures -> predictions of the items that are still good."""
        good = batch.good()
        if not good:
            return batch
        # An item that failed to decode leaves a stale picture in its place: computed, not read.
        count = 1 + max(item.index for item in good if item.index is not None)
        top_k = self.runner.run(count, batch.timer)
        with batch.timer.stage(Stage.POSTPROCESS):
            probabilities, classes = (
                top_k.probabilities.tolist(),
                top_k.classes.tolist(),
            )
            for item in good:
                row = zip(classes[item.index], probabilities[item.index])
                # `not below`: what is no number is shown, not hidden.
                item.predictions = [
                    (self._labels.get(c, str(c)), p)
                    for c, p in row
                    if not p < self._least
                ]
        return batch

    def postprocess(self, batch: Batch) -> list[Reply]:
        """Items -> encoded replies, in the rows' order."""
        with batch.timer.stage(Stage.POSTPROCESS):
            return [
                (
                    encode_error(item.error)
                    if item.error
                    else encode_prediction(item.predictions)
                )
                for item in batch.items
            ]

    def warm_up(self, payloads: Sequence[Payload]) -> None:
        """Runs the batch sizes and the given pictures through every stage."""
        self.runner.warm_up()
        for payload in payloads:
            self.classify([{"body": payload}])

    def _read(self, row: Mapping[str, Any], item: Item) -> None:
        body = row.get("body")
        if isinstance(body, Decoded):
            item.decoded = body
            return
        try:
            item.payload = read_payload(row, self.config.max_payload_bytes)
        except ItemError as error:
            item.error = without_frames(error)

    def _decode_all(self, items: Sequence[Item], timer: StageTimer) -> None:
        shares = {Stage.DECODE: 0.0, Stage.TRANSFORM: 0.0}
        with timer.shared(shares):
            if self._decode_together is not None:
                items = self._decode_on_device(items, self._decode_together, shares)
            run = map if self._pool is None else self._pool.map
            for decode_s, transform_s in run(self._decode, items):
                shares[Stage.DECODE] += decode_s
                shares[Stage.TRANSFORM] += transform_s

    def _decode_on_device(
        self,
        items: Sequence[Item],
        decode: DecodeTogether,
        shares: dict[Stage, float],
    ) -> list[Item]:
        """Decodes, resizes and puts what the device can; returns the items that it left."""
        start = time.perf_counter()
        payloads = [item.payload or b"" for item in items]
        pictures = decode_on_device(payloads, self._options, decode)
        decoded = time.perf_counter()
        left = []
        for item, picture in zip(items, pictures):
            square = (
                None if picture is None else transform_on_device(picture, self._square)
            )
            if square is None or item.index is None:
                left.append(item)
            else:
                self.runner.put_from_device(item.index, square)
        shares[Stage.DECODE] += decoded - start
        shares[Stage.TRANSFORM] += time.perf_counter() - decoded
        return left

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
            decoded = time.perf_counter()  # only decoding refuses
        return decoded - start, time.perf_counter() - decoded

    def _decode_into_batch(self, item: Item, start: float) -> float:
        payload, index = item.payload, item.index
        if item.decoded is not None and index is not None:
            self._put_decoded(index, item.decoded)
            return time.perf_counter()
        if payload is None or index is None:
            raise RuntimeError(
                "an item without a payload or a place was given to the decoder"
            )
        if start > self._end_s:
            raise BatchOutOfTime("the pictures beside it took too long; send it again")
        pixels, decoded = self._squares.make(payload)
        self.runner.put(index, pixels)
        return decoded

    def _put_decoded(self, index: int, decoded: Decoded) -> None:
        if decoded.pixels.shape != self._square.shape:
            # Of an archive with another size, while one replaces the other.
            raise BadTensor(
                f"decoded to {list(decoded.pixels.shape)}; the model takes"
                f" {list(self._square.shape)}"
            )
        self.runner.put(index, decoded.pixels)


def without_frames(error: ItemError) -> ItemError:
    """Cuts an error's ties to the frames it passed.

    They hold the item, which holds the error: a cycle that would keep each bad payload until the
    garbage collector's oldest generation, which in a process with torch is rarely looked at. A
    soak grew by 4 MB a minute and worker.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def set_threads(threads: int) -> None:
    """Sets torch's intra-op threads once: its default, all cores in every worker, oversubscribes
    the machine as soon as there are two workers."""
    torch.set_num_threads(threads)
    with contextlib.suppress(RuntimeError):  # once per process; the first value stays
        torch.set_num_interop_threads(1)
