"""Runs a batch of pictures: the batch buffer, an engine, the activation and top-k.

CUDA differs in four places, all in this module. The buffer is pinned. Each picture is copied to the
device as soon as it is decoded, on a separate stream, so that the copy overlaps with the decoding
of the next picture. Batch sizes are captured as CUDA graphs. Events separate the time of the copy
from that of the forward pass.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.image.decode import Pixels
from offpath.handler.model.activation import activate
from offpath.handler.model.engines.engine import Engine
from offpath.handler.stages import Stage, StageTimer

logger = logging.getLogger(__name__)

# Runs that a stream needs before a capture (PyTorch's notes on CUDA graphs).
RUNS_BEFORE_CAPTURE = 3


@dataclass(frozen=True)
class TopK:
    """The best classes of a batch, best first.

    Attributes:
        probabilities: float32 [batch, k]; with `activation: none` the model's raw outputs.
        classes: int64 [batch, k].
    """

    probabilities: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]


@dataclass(frozen=True)
class CapturedBatch:
    """A captured CUDA graph for one batch size, with the tensors that a replay fills."""

    graph: torch.cuda.CUDAGraph
    probabilities: torch.Tensor
    classes: torch.Tensor


class BatchRunner:
    """Runs batches of up to `max_batch` pictures.

    Args:
        engine: maps uint8 pictures to the model's outputs.
        config: gives `image_size`, `activation`, `cuda_graphs` and `top_k`, which is cut to the
            model's number of classes; with a `threshold` all classes are returned.
        device: where the engine expects its pictures.
        max_batch: capacity of the batch buffer, in pictures.
    """

    def __init__(
        self,
        engine: Engine,
        config: HandlerConfig,
        device: torch.device,
        max_batch: int,
    ) -> None:
        self.engine = engine
        self.device = device
        # Known from the first batch on, which is the warm-up.
        self.classes = 0
        self._shape = config.input_geometry.shape
        self._activation = config.activation
        self._top_k = config.top_k if config.threshold is None else sys.maxsize
        self._is_cuda = device.type == "cuda"
        self._has_graphs = self._is_cuda and config.cuda_graphs and engine.is_capturable
        self._graphs: dict[int, CapturedBatch] = {}
        self._copies = torch.cuda.Stream(device) if self._is_cuda else None
        self._allocate(max_batch)

    @property
    def max_batch(self) -> int:
        """Capacity of the batch buffer, in pictures."""
        return int(self._host.shape[0])

    @property
    def captured_sizes(self) -> list[int]:
        """Batch sizes that run as CUDA graphs."""
        return sorted(self._graphs)

    def grow(self, batch: int) -> None:
        """Makes room for a larger batch, because TorchServe can raise batch_size after load."""
        if batch > self.max_batch:
            self._allocate(batch)
            if self._has_graphs:
                self._capture_all()

    def _allocate(self, batch: int) -> None:
        """Allocates the pixel buffers that every batch reuses, on the host and on the device."""
        self._graphs.clear()  # graphs hold the old buffer's address
        self._host = torch.zeros(
            (batch, *self._shape),
            dtype=torch.uint8,
            pin_memory=self._is_cuda,
        )
        self._host_array: npt.NDArray[np.uint8] = self._host.numpy()
        self._pictures = (
            torch.zeros_like(self._host, device=self.device)
            if self._is_cuda
            else self._host
        )

    def put(self, index: int, pixels: Pixels) -> None:
        """Puts one picture, uint8 [size, size, channels], into the batch buffer."""
        self._host_array[index] = pixels
        if self._copies is not None:
            with torch.cuda.stream(self._copies):
                self._pictures[index].copy_(self._host[index], non_blocking=True)

    def put_from_device(self, index: int, pixels: torch.Tensor) -> None:
        """Puts one picture that is already on the device, uint8 [size, size, channels]."""
        # This copy runs on the stream of the forward pass, which therefore comes after it.
        self._pictures[index].copy_(pixels)

    def picture(self, index: int) -> torch.Tensor:
        """Returns one picture of the batch, uint8 [1, size, size, channels], for explanations."""
        return self._pictures[index : index + 1]

    def run(self, count: int, timer: StageTimer) -> TopK:
        """Classifies the first `count` pictures of the buffer."""
        if self._copies is None:
            with torch.inference_mode(), timer.stage(Stage.INFERENCE):
                probabilities, classes = self.classify(self._pictures[:count])
                return TopK(probabilities.numpy(), classes.numpy())
        shares: dict[Stage, float] = {}
        with torch.inference_mode(), timer.shared(shares):
            top_k, transfer_ms, inference_ms = self._run_on_cuda(count, self._copies)
            shares[Stage.TRANSFER] = transfer_ms
            shares[Stage.INFERENCE] = inference_ms
        return top_k

    def _run_on_cuda(
        self, count: int, copies: torch.cuda.Stream
    ) -> tuple[TopK, float, float]:
        """Returns (scores, milliseconds of the transfer, milliseconds of the inference)."""
        start, copied, done = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        torch.cuda.current_stream(self.device).wait_stream(copies)
        copied.record()
        probabilities, classes = self._replay(count)
        done.record()
        # The copy back is the only synchronisation; the events can be read after it.
        top_k = TopK(probabilities.cpu().numpy(), classes.cpu().numpy())
        return top_k, start.elapsed_time(copied), copied.elapsed_time(done)

    def classify(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Maps uint8 [batch, size, size, channels] to (scores, classes), both [batch, k]."""
        scores = activate(self.engine(pictures), self._activation)
        self.classes = scores.shape[1]
        best = torch.topk(scores, min(self._top_k, self.classes), dim=1)
        return best.values, best.indices

    def _replay(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Replays the smallest captured batch that holds `count` pictures, or runs the engine."""
        size = choose_bucket(count, self.captured_sizes)
        if size is None:
            return self.classify(self._pictures[:count])
        captured = self._graphs[size]
        captured.graph.replay()
        return captured.probabilities[:count], captured.classes[:count]

    def _capture_all(self) -> None:
        # The largest first: an engine's own buffer grows with the batch, and a graph keeps using
        # the addresses that it was captured with.
        for size in reversed(batch_buckets(self.max_batch)):
            try:
                self._graphs[size] = self._capture(size)
            except RuntimeError as error:
                # The model branches on its data, or memory does not suffice.
                logger.warning("batch of %d without a CUDA graph: %s", size, error)

    def _capture(self, size: int) -> CapturedBatch:
        pictures = self._pictures[:size]
        with torch.inference_mode():
            aside = torch.cuda.Stream(self.device)
            aside.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(aside):
                for _ in range(RUNS_BEFORE_CAPTURE):
                    self.classify(pictures)
            torch.cuda.current_stream(self.device).wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                probabilities, classes = self.classify(pictures)
        return CapturedBatch(graph, probabilities, classes)

    def warm_up(self) -> None:
        """Runs batches of 1, 2, 4, ... and `max_batch` pictures before the first request.

        Then no request pays for first-time work; sizes in between cost little more.
        """
        if self._has_graphs:
            self._capture_all()
        for count in batch_buckets(self.max_batch):
            self.run(count, StageTimer())


def batch_buckets(max_batch: int) -> list[int]:
    """Returns 1, 2, 4, ... and `max_batch`."""
    return sorted({max_batch, *(2**n for n in range(max_batch.bit_length()))})


def choose_bucket(count: int, sizes: Sequence[int]) -> int | None:
    """Returns the smallest of the ascending `sizes` that holds `count`; None if none does."""
    return next((size for size in sizes if size >= count), None)
