"""Runs a batch of images: the batch buffer, an engine, the activation and top-k.

CUDA differs in three places, all in this module. The buffer is pinned, and copied to the device in
one call. Batch sizes are captured as CUDA graphs, whose answers are compared with the engine's
before they serve. Events separate the time of the copy from that of the forward pass, and the
worker waits for the last of them.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.handler.model.engines.engine import Engine
from offpath.handler.model.outputs import activate
from offpath.handler.model.parity import ParitySet
from offpath.handler.stages import Stage, StageTimer

logger = logging.getLogger(__name__)

# Runs that a stream needs before a capture (PyTorch's notes on CUDA graphs).
RUNS_BEFORE_CAPTURE = 3
# Distance between the sizes of captured batches: a batch of 9 runs as 12.
GRAPH_STEP = 4
# Largest move of a score by rounding, as a share of the largest score.
ROUNDING = 1 / 256


@dataclass(frozen=True)
class TopK:
    """The best classes of a batch, best first.

    Attributes:
        probabilities: float32 [batch, k]; with `activation: none` the model's raw outputs.
        classes: int64 [batch, k].
        outputs: the model's raw outputs, float32 [batch, classes], until the next batch; None
            unless the runner keeps them.
    """

    probabilities: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]
    outputs: torch.Tensor | None = None


@dataclass(frozen=True)
class CapturedBatch:
    """A captured CUDA graph for one batch size, with the tensors that a replay fills.

    `scores` is [batch, classes]; `probabilities` and `classes` are the best of them.
    """

    graph: torch.cuda.CUDAGraph
    scores: torch.Tensor
    probabilities: torch.Tensor
    classes: torch.Tensor
    outputs: torch.Tensor | None = None


class BatchRunner:
    """Runs batches of up to `max_batch` images.

    Args:
        engine: maps uint8 images to the model's outputs.
        config: gives `image_size`, `activation`, `cuda_graphs` and `top_k`, which is cut to the
            model's number of classes; with a `threshold` all classes are returned.
        parity: has the photographs on which graphs are compared with the engine; None takes noise.
        keeps_outputs: returns the model's raw outputs too.

    Attributes:
        pixels: the batch buffer, uint8 [max_batch, height, width, channels], for images that the
            CPU decodes. Another one after `begin`.
    """

    pixels: npt.NDArray[np.uint8]

    def __init__(
        self,
        engine: Engine,
        config: HandlerConfig,
        device: torch.device,
        max_batch: int,
        parity: ParitySet | None = None,
        keeps_outputs: bool = False,
    ) -> None:
        self.engine = engine
        self._keeps_outputs = keeps_outputs
        self.device = device
        # Known from the first batch on, which is the warm-up.
        self.classes = 0
        self._shape = config.input_geometry.shape
        self._activation = config.activation
        self._top_k = config.top_k if config.threshold is None else sys.maxsize
        self._is_cuda = device.type == "cuda"
        self._has_graphs = self._is_cuda and config.cuda_graphs and engine.is_capturable
        self._parity_bound = config.parity_bound
        self._parity = parity
        self._graphs: dict[int, CapturedBatch] = {}
        self._decoded_on_device: set[int] = set()
        self._allocate(max_batch)

    @property
    def max_batch(self) -> int:
        """Capacity of the batch buffer, in images."""
        return int(self._host.shape[0])

    @property
    def captured_sizes(self) -> list[int]:
        return sorted(self._graphs)

    def begin(self, batch: int) -> None:
        """Forgets the last batch, and makes room: TorchServe can raise batch_size after load.

        The capacity becomes a power of two, so that graphs are captured again a few times at most.
        """
        self._decoded_on_device.clear()
        if self.device.index:
            # A thread begins with device 0, and the model may have been loaded by another thread.
            torch.cuda.set_device(self.device)
        if batch > self.max_batch:
            self._allocate(1 << (batch - 1).bit_length())
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
        self.pixels = self._host.numpy()
        self._images = (
            torch.zeros_like(self._host, device=self.device) if self._is_cuda else self._host
        )

    def put_from_device(self, index: int, pixels: torch.Tensor) -> None:
        """Puts one image that is already on the device, uint8 [height, width, channels]."""
        self._images[index].copy_(pixels)
        self._decoded_on_device.add(index)

    def image(self, index: int) -> torch.Tensor:
        """Returns one image of the batch, uint8 [1, height, width, channels], to explain."""
        return self._images[index : index + 1]

    def run(self, count: int, timer: StageTimer) -> TopK:
        """Classifies the first `count` images of the buffer."""
        if not self._is_cuda:
            with torch.inference_mode(), timer.stage(Stage.INFERENCE):
                _, probabilities, classes, *outputs = self.classify(self._images[:count])
                return TopK(probabilities.numpy(), classes.numpy(), *outputs)
        shares: dict[Stage, float] = {}
        with torch.inference_mode(), timer.shared(shares):
            top_k, transfer_ms, inference_ms = self._run_on_cuda(count)
            shares[Stage.TRANSFER] = transfer_ms
            shares[Stage.INFERENCE] = inference_ms
        return top_k

    def _run_on_cuda(self, count: int) -> tuple[TopK, float, float]:
        """Returns (scores, milliseconds of the transfer, milliseconds of the inference)."""
        start, copied = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # By default CUDA waits in a loop, which takes a core from the decoders.
        done = torch.cuda.Event(enable_timing=True, blocking=True)
        start.record()
        self._copy_to_device(count)
        copied.record()
        # Into pinned memory, without waiting.
        probabilities, classes, *outputs = (
            answer.to("cpu", non_blocking=True) for answer in self._replay(count)
        )
        done.record()
        done.synchronize()
        top_k = TopK(probabilities.numpy(), classes.numpy(), *outputs)
        return top_k, start.elapsed_time(copied), copied.elapsed_time(done)

    def _copy_to_device(self, count: int) -> None:
        """Copies the images that the CPU decoded: one call costs less CPU than one for each."""
        if not self._decoded_on_device:
            self._images[:count].copy_(self._host[:count], non_blocking=True)
            return
        for index in set(range(count)) - self._decoded_on_device:
            self._images[index].copy_(self._host[index], non_blocking=True)

    def classify(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Maps uint8 [batch, height, width, channels] to all scores, the best k, their classes.

        A runner that keeps the model's raw outputs returns them last.
        """
        outputs = self.engine(images)
        scores = activate(outputs, self._activation)
        self.classes = scores.shape[1]
        best = torch.topk(scores, min(self._top_k, self.classes), dim=1)
        answers = scores, best.values, best.indices
        return (*answers, outputs.float()) if self._keeps_outputs else answers

    def _replay(self, count: int) -> tuple[torch.Tensor, ...]:
        """Replays the smallest captured batch that holds `count` images, or runs the engine."""
        size = next((size for size in self.captured_sizes if size >= count), None)
        if size is None:
            return self.classify(self._images[:count])[1:]
        captured = self._graphs[size]
        captured.graph.replay()
        answers = captured.probabilities, captured.classes, captured.outputs
        return tuple(answer[:count] for answer in answers if answer is not None)

    def _capture_all(self) -> None:
        # Graphs run one after the other, so they can share the memory between their layers.
        pool = torch.cuda.graph_pool_handle()
        # cuDNN tries its algorithms once for each shape, and graphs have fixed shapes.
        torch.backends.cudnn.benchmark = True
        # The largest first: an engine's own buffer grows with the batch, and a graph keeps using
        # the addresses that it was captured with.
        for size in reversed(graph_sizes(self.max_batch)):
            try:
                self._graphs[size] = self._capture(size, pool)
            except RuntimeError as error:
                # The model branches on its data, or memory does not suffice.
                logger.warning("batch of %d without a CUDA graph: %s", size, error)
        torch.backends.cudnn.benchmark = False
        self._check_graphs()

    def _check_graphs(self) -> None:
        """Compares each graph's replay with the engine, on photographs and on their negatives.

        A graph that replays old answers gives both the same scores. These cannot be nearer to each
        of the engine's two answers than half the distance between the two. Rounding is allowed.

        Raises:
            ConfigError: a graph gives other answers than the engine. No graph is kept.
        """
        noise = np.random.default_rng(0).integers(0, 256, (1, *self._shape), np.uint8)
        photographs = self._parity.images if self._parity else noise
        for size, captured in self._graphs.items():
            shown = photographs[np.arange(size) % len(photographs)]
            right, moved = [], []
            for images in (shown, 255 - shown):
                self._images[:size].copy_(torch.from_numpy(images))
                with torch.inference_mode():
                    # Copied, because the engine's next call may overwrite its outputs.
                    right.append(self.classify(self._images[:size])[0].clone())
                    captured.graph.replay()
                    moved.append((captured.scores - right[-1]).abs().amax(1))
            apart = (right[0] - right[1]).abs().amax(1)
            rounding = right[0].abs().amax(1) * ROUNDING
            bound = torch.maximum(apart / 2, rounding).clamp(max=self._parity_bound)
            excess = float((torch.stack(moved) - bound).max())
            if not excess <= 0:  # also if it is not a number
                self._graphs.clear()
                raise ConfigError(
                    f"the CUDA graph for a batch of {size} gives other answers than the model: a"
                    f" score moved by {excess:.3g} more than rounding explains; set"
                    " handler.cuda_graphs to false"
                )

    def _capture(self, size: int, pool: Any) -> CapturedBatch:
        images = self._images[:size]
        with torch.inference_mode():
            aside = torch.cuda.Stream(self.device)
            aside.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(aside):
                for _ in range(RUNS_BEFORE_CAPTURE):
                    self.classify(images)
            torch.cuda.current_stream(self.device).wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                answers = self.classify(images)
        return CapturedBatch(graph, *answers)

    def warm_up(self) -> None:
        """Runs batches of 1, 2, 4, ... and `max_batch` images before the first request.

        Then no request pays for first-time work; sizes in between cost little more.
        """
        if self._has_graphs:
            self._capture_all()
        for count in sorted({self.max_batch, *(2**n for n in range(self.max_batch.bit_length()))}):
            self.run(count, StageTimer())


def graph_sizes(max_batch: int) -> list[int]:
    """Returns 1, 2, 4, 8, 12, 16, ... and `max_batch`."""
    steps = range(GRAPH_STEP, max_batch, GRAPH_STEP)
    return sorted({1, min(2, max_batch), max_batch, *steps})
