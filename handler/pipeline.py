"""Reads requests into items, and predicts batches of items, without knowing any server.

Rivals in benchmarks and the tests run the same code.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.contract import Item, Request
from offpath.handler.errors import BatchOutOfTime, ItemError, ModelFailed, without_frames
from offpath.handler.image.nvjpeg import DecodeTogether, DeviceDecoder, find_nvjpeg
from offpath.handler.input_maker import InputMaker, silence_decoders
from offpath.handler.model.batch_runner import BatchRunner
from offpath.handler.request.payload import read_fields, read_payload
from offpath.handler.stages import Stage, StageTimer

NOT_FINITE = (
    "the model's scores are not finite (NaN or infinity); check the weights, and the"
    " precision if it is fp16"
)
# The stages of `Item.seconds`, in its order.
READ_STAGES = (Stage.READ, Stage.DECODE, Stage.TRANSFORM)


@dataclass(slots=True)
class Batch:
    """Items that are answered together, with their timer."""

    items: list[Item]
    timer: StageTimer
    # Images that the CPU decoded because the device had no memory for them.
    without_memory: int = 0

    def good(self) -> list[Item]:
        return [item for item in self.items if item.error is None]


class Pipeline:
    """The stages from requests to predictions, over one batch runner.

    Args:
        labels: class index -> label; a class without a label is named by its index.
        threads: decode threads; 1 decodes on the calling thread.
        decode_together: decodes a batch's JPEGs on the runner's device; by default nvjpeg, if the
            settings ask for it and it works.
        batch_s: seconds after which no further image of a batch is decoded; 0 is no limit. Later
            items get a 503, because TorchServe ends the worker at `responseTimeout`.
        open_request: gives a request the body that the front door has named.
    """

    def __init__(
        self,
        config: HandlerConfig,
        runner: BatchRunner,
        labels: Mapping[int, str],
        threads: int,
        decode_together: DecodeTogether | None = None,
        batch_s: float = 0.0,
        open_request: Callable[[Request], Request] | None = None,
    ) -> None:
        silence_decoders()
        self.config = config
        self.runner = runner
        self._labels = labels
        threshold = config.threshold
        # Without a threshold all finite scores are answered: a model may mask classes by -inf.
        self._least = -sys.float_info.max if threshold is None else threshold
        self._batch_s = batch_s or math.inf
        self._open_request = open_request
        self._input_maker = self._batch_maker = InputMaker(config)
        if decode_together is None and config.decode == "nvjpeg":
            decode_together = find_nvjpeg(runner.device)
        self._device_decoder = None
        if decode_together is not None:
            self._device_decoder = DeviceDecoder(
                decode_together, config.decode_options, config.input_geometry
            )
        self._threads = threads
        # The calling thread decodes too. A thread of the pool starts when it is first needed.
        self._pool = ThreadPoolExecutor(max(1, threads - 1), "decode")

    @property
    def decode_mode(self) -> str:
        """The setting `decode`, or "scaled" if nvjpeg was asked for but does not work."""
        is_missing = self.config.decode == "nvjpeg" and self._device_decoder is None
        return "scaled" if is_missing else self.config.decode

    def leave_costly(self) -> None:
        """From now on leaves images that would hold up their batch; their error is ImageLeft."""
        self._batch_maker = InputMaker(self.config, leaves_costly=True)

    def read(self, request: Request, end_s: float = math.inf, is_alone: bool = True) -> Item:
        """Decodes a request's image, or leaves a JPEG to the device; any thread may call this.

        Args:
            end_s: `perf_counter` time after which nothing is decoded.
            is_alone: no batch waits for it, so the image may be costly.
        """
        item, start = Item(request), time.perf_counter()
        try:
            if self._open_request is not None:
                item.request = request = self._open_request(request)
            fields = read_fields(request)
            item.target = fields.get("target")
            item.payload = read_payload(fields, self.config.max_payload_bytes)
            if start > end_s:
                raise BatchOutOfTime(
                    "the other images of the batch took too long; send the request again"
                )
        except ItemError as error:
            item.error = without_frames(error)
        item.seconds = (time.perf_counter() - start,)
        decoder = self._device_decoder
        if item.error is None and (decoder is None or not decoder.takes(item.payload or b"")):
            self._decode(item, is_alone)
        return item

    def read_batch(
        self, requests: Sequence[Request], errors: Mapping[int, ItemError] | None = None
    ) -> Batch:
        """Reads requests on the calling thread and its helpers.

        Args:
            errors: of requests that must not be read, by their index.
        """
        timer, end_s = StageTimer(), time.perf_counter() + self._batch_s
        items = [Item(request) for request in requests]
        for idx, error in (errors or {}).items():
            items[idx].error = error

        def read(idx: int) -> None:
            items[idx] = self.read(requests[idx], end_s, is_alone=False)

        shares: dict[Stage, float] = {}
        with timer.shared(shares):
            self._share_out(read, [idx for idx, item in enumerate(items) if item.error is None])
            shares.update(sum_seconds(items))
        return Batch(items, timer)

    def predict(self, batch: Batch) -> Batch:
        """Adds predictions to the items without an error, or an error if they are not finite.

        Raises:
            FloatingPointError: no item has a finite score, so the model itself is probably broken.
        """
        if batch.good():
            self._fill_buffer(batch)
        good = batch.good()
        if not good:
            return batch
        # An item that failed to decode leaves a stale image in its place; its result is not used.
        count = 1 + max(item.index for item in good if item.index is not None)
        top_k = self.runner.run(count, batch.timer)
        with batch.timer.stage(Stage.POSTPROCESS):
            probabilities, classes = top_k.probabilities.tolist(), top_k.classes.tolist()
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

    def _fill_buffer(self, batch: Batch) -> None:
        """Puts the images into the batch buffer, and decodes those that were left to the device."""
        good = batch.good()
        self.runner.begin(len(good))
        for index, item in enumerate(good):
            item.index = index
        left = [item for item in good if item.pixels is None]
        if left and self._device_decoder is not None:
            self._decode_on_device(left, batch, self._device_decoder)
        with batch.timer.stage(Stage.TRANSFORM):
            for item in good:
                if item.pixels is not None:
                    self.runner.pixels[item.index] = item.pixels

    def _share_out(self, work: Callable[[int], None], indices: Sequence[int]) -> None:
        """Calls `work` with each index, on the calling thread and its helpers.

        Each thread takes the next index when it is done with one. A future per item would wake two
        threads per image, which costs up to 0.2 ms of CPU.
        """
        waiting = iter(indices)  # threads may share a list's iterator

        def do_some() -> None:
            for index in waiting:
                work(index)

        count = min(self._threads, len(indices)) - 1
        helpers = [self._pool.submit(do_some) for _ in range(count)]
        try:
            do_some()
        finally:
            # None may still work on this batch when the next one begins. One that has not begun
            # has nothing left to do, and would first wait for another batch.
            helpers = [helper for helper in helpers if not helper.cancel()]
            wait(helpers)
        for helper in helpers:
            helper.result()

    def _decode_on_device(
        self, items: Sequence[Item], batch: Batch, decoder: DeviceDecoder
    ) -> None:
        """Decodes and resizes on the device, as far as it can, and the rest on the CPU."""
        shares = {Stage.DECODE: 0.0, Stage.TRANSFORM: 0.0}
        with batch.timer.shared(shares):
            start = time.perf_counter()
            images = decoder.decode([item.payload or b"" for item in items])
            decoded = time.perf_counter()
            left = []
            for item, pixels in zip(items, decoder.resize(images)):
                if pixels is None or item.index is None:
                    left.append(item)
                else:
                    self.runner.put_from_device(item.index, pixels)
            shares[Stage.DECODE] += decoded - start
            shares[Stage.TRANSFORM] += time.perf_counter() - decoded
            batch.without_memory = decoder.without_memory
            self._share_out(lambda n: self._decode(left[n]), range(len(left)))
            on_cpu = sum_seconds(left)
            for stage in shares:
                shares[stage] += on_cpu[stage]

    def _decode(self, item: Item, is_alone: bool = True) -> None:
        """Decodes and resizes one item on the CPU; its thread's clock counts the seconds."""
        maker = self._input_maker if is_alone else self._batch_maker
        start = decoded = time.perf_counter()
        try:
            item.pixels, decoded = maker.make(item.payload or b"")
        except ItemError as error:
            item.error = without_frames(error)
            decoded = time.perf_counter()  # only decoding raises
        item.seconds = (*item.seconds, decoded - start, time.perf_counter() - decoded)


def batch_of(items: Sequence[Item]) -> Batch:
    """Makes a batch of items that were read one by one, whose seconds count as the batch's."""
    batch = Batch(list(items), StageTimer())
    batch.timer.add(sum_seconds(items))
    return batch


def sum_seconds(items: Sequence[Item]) -> dict[Stage, float]:
    """Returns the seconds of items by the stages of reading."""
    sums = dict.fromkeys(READ_STAGES, 0.0)
    for item in items:
        for stage, seconds in zip(READ_STAGES, item.seconds):
            sums[stage] += seconds
    return sums


def set_threads(threads: int) -> None:
    """Sets torch's threads for this process.

    torch's default is all cores in every worker, which oversubscribes the machine with two workers.
    """
    torch.set_num_threads(threads)
    with contextlib.suppress(RuntimeError):  # possible only once; the first value stays
        torch.set_num_interop_threads(1)
