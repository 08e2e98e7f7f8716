"""A batch of pictures -> scores: the batch buffer, a back end, the activation and top-k.

CUDA differs in four places, all here: the buffer is pinned, each picture's copy starts as soon as
it is there (on a stream of its own, so that it hides behind the decoding of the next), batch
sizes are captured as CUDA graphs, and events tell the copy's time from the forward's.
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
from offpath.handler.model.engines import Backend
from offpath.handler.model.head import activate
from offpath.handler.stages import Stage, StageTimer

logger = logging.getLogger(__name__)

# What a stream has to have run before a capture (PyTorch's notes on CUDA graphs).
RUNS_BEFORE_CAPTURE = 3


@dataclass(frozen=True)
class TopK:
    """The best classes of a batch, best first.

    Attributes:
        probabilities: float32 [batch, k]; with `activation: none` whatever the model gives.
        classes: int64 [batch, k].
    """

    probabilities: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]


@dataclass(frozen=True)
class CapturedBatch:
    """A CUDA graph of one batch size with the tensors that a replay fills."""

    graph: torch.cuda.CUDAGraph
    probabilities: torch.Tensor
    classes: torch.Tensor


class BatchRunner:
    """Runs batches of up to `max_batch` pictures.

    Args:
        backend: maps uint8 pictures to the model's outputs.
        config: `image_size`, `activation`, `top_k` (cut to the model's own number of classes; all
            of them where there is a `threshold`), `cuda_graphs`.
        device: where the back end takes its pictures.
        max_batch: capacity of the batch buffer.
    """

    def __init__(
        self,
        backend: Backend,
        config: HandlerConfig,
        device: torch.device,
        max_batch: int,
    ) -> None:
        self.backend = backend
        self.device = device
        # Known from the first batch on, which is the warm-up.
        self.classes = 0
        self._square, self._activation = config.square, config.activation
        self._top_k = config.top_k if config.threshold is None else sys.maxsize
        self._is_cuda = device.type == "cuda"
        self._has_graphs = (
            self._is_cuda and config.cuda_graphs and backend.is_capturable
        )
        self._graphs: dict[int, CapturedBatch] = {}
        self._copies = torch.cuda.Stream(device) if self._is_cuda else None
        self._allocate(max_batch)

    @property
    def max_batch(self) -> int:
        """Pictures that the batch buffer holds."""
        return int(self._host.shape[0])

    @property
    def captured_sizes(self) -> list[int]:
        """Batch sizes that run as CUDA graphs."""
        return sorted(self._graphs)

    def grow(self, batch: int) -> None:
        """Makes room for a larger batch: TorchServe's API can raise batch_size after load."""
        if batch > self.max_batch:
            self._allocate(batch)
            if self._has_graphs:
                self._capture_all()

    def _allocate(self, batch: int) -> None:
        """The buffers that every batch reuses: pixels on the host and on the device."""
        self._graphs.clear()  # they hold the old buffer's address
        self._host = torch.zeros(
            (batch, *self._square.shape),
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
        """Puts one picture that is on the device already, uint8 [size, size, channels]."""
        # On the stream of the forward, which therefore comes after it.
        self._pictures[index].copy_(pixels)

    def picture(self, index: int) -> torch.Tensor:
        """One picture of the batch, uint8 [1, size, size, channels], for explanations."""
        return self._pictures[index : index + 1]

    def run(self, count: int, timer: StageTimer) -> TopK:
        """Classifies the first `count` pictures of the buffer."""
        shares: dict[Stage, float] = {}
        with torch.inference_mode(), timer.shared(shares):
            if self._copies is not None:
                return self._run_on_cuda(count, self._copies, shares)
            shares[Stage.INFERENCE] = 1.0
            probabilities, classes = self.classify(self._pictures[:count])
            return TopK(probabilities.numpy(), classes.numpy())

    def _run_on_cuda(
        self, count: int, copies: torch.cuda.Stream, shares: dict[Stage, float]
    ) -> TopK:
        start, copied, done = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        torch.cuda.current_stream(self.device).wait_stream(copies)
        copied.record()
        probabilities, classes = self._replay(count)
        done.record()
        # The copy back is the one synchronisation; only after it the events can be read.
        top_k = TopK(probabilities.cpu().numpy(), classes.cpu().numpy())
        shares[Stage.TRANSFER] = start.elapsed_time(copied)
        shares[Stage.INFERENCE] = copied.elapsed_time(done)
        return top_k

    def classify(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """uint8 [batch, size, size, channels] on the device -> scores and classes [batch, k]."""
        scores = activate(self.backend(pictures), self._activation)
        self.classes = scores.shape[1]
        best = torch.topk(scores, min(self._top_k, self.classes), dim=1)
        return best.values, best.indices

    def _replay(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The smallest captured batch that holds `count` pictures, or the back end itself."""
        size = choose_bucket(count, self.captured_sizes)
        if size is None:
            return self.classify(self._pictures[:count])
        captured = self._graphs[size]
        captured.graph.replay()
        return captured.probabilities[:count], captured.classes[:count]

    def _capture_all(self) -> None:
        # The largest first: a back end's own buffer grows with the batch, and a graph goes on
        # using the addresses that it was captured with.
        for size in reversed(batch_buckets(self.max_batch)):
            try:
                self._graphs[size] = self._capture(size)
            except RuntimeError as error:
                # A model with a branch on its data, or memory that does not suffice.
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
        """Runs batches of 1, 2, 4, ... and `max_batch` pictures, so that no request pays for
        first-time work; sizes between them cost little more after that."""
        if self._has_graphs:
            self._capture_all()
        for count in batch_buckets(self.max_batch):
            self.run(count, StageTimer())


def batch_buckets(max_batch: int) -> list[int]:
    """1, 2, 4, ... and `max_batch`."""
    return sorted({max_batch, *(2**n for n in range(max_batch.bit_length()))})


def choose_bucket(count: int, sizes: Sequence[int]) -> int | None:
    """The smallest of the ascending `sizes` that holds `count`."""
    return next((size for size in sizes if size >= count), None)
