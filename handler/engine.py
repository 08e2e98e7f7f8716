"""The model on its device: a staging buffer, normalisation, forward, softmax and top-k.

CUDA differs in three places, all here: the buffer is pinned, the copy does not block, and events
tell the copy's time from the forward's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from handler.decode import Pixels
from handler.stages import Stage, StageTimer


@dataclass(frozen=True)
class TopK:
    """The best classes of a batch, best first.

    Attributes:
        probabilities: float32 [batch, k].
        classes: int64 [batch, k].
    """

    probabilities: npt.NDArray[np.float32]
    classes: npt.NDArray[np.int64]


class Engine:
    """Runs batches of up to `max_batch` pictures.

    Args:
        model: maps float32 [batch, 3, size, size] to logits [batch, classes]; already on `device`.
        device: where the model lives.
        mean, std: per channel, of pixels scaled to 0..1.
        image_size: side of the model's square, in pixels.
        max_batch: capacity of the staging buffer.
        top_k: classes per answer; cut to the model's own number of classes.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        device: torch.device,
        mean: Sequence[float],
        std: Sequence[float],
        image_size: int,
        max_batch: int,
        top_k: int,
    ) -> None:
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = device
        self.image_size = image_size
        # Known from the first batch on, which is the warm-up.
        self.classes = 0
        self._top_k = top_k
        self._is_cuda = device.type == "cuda"
        self._allocate(max_batch)
        # (x / 255 - mean) / std as one multiply-add, repeated along a row of pixels: an inner
        # dimension of 3 would not vectorise (4.3 ms against 0.7 ms for 8 pictures).
        scale = 1.0 / (255.0 * torch.tensor(std, dtype=torch.float32))
        bias = -torch.tensor(mean, dtype=torch.float32) / torch.tensor(
            std, dtype=torch.float32
        )
        self._row_scale = scale.repeat(image_size).to(device)
        self._row_bias = bias.repeat(image_size).to(device)

    @property
    def max_batch(self) -> int:
        """Pictures that the staging buffer holds."""
        return int(self._staging.shape[0])

    def grow(self, batch: int) -> None:
        """Makes room for a larger batch: TorchServe's API can raise batch_size after load."""
        if batch > self.max_batch:
            self._allocate(batch)

    def _allocate(self, batch: int) -> None:
        """The buffers that every batch reuses: pixels on the host, the input on the device."""
        size = self.image_size
        self._staging = torch.zeros(
            (batch, size, size, 3), dtype=torch.uint8, pin_memory=self._is_cuda
        )
        self._staging_array: npt.NDArray[np.uint8] = self._staging.numpy()
        self._input = torch.zeros((batch, size, size * 3), device=self.device)

    def stage(self, slot: int, pixels: Pixels) -> None:
        """Puts one picture, uint8 [size, size, 3], into the staging buffer."""
        self._staging_array[slot] = pixels

    def run(self, count: int, timer: StageTimer) -> TopK:
        """Classifies the first `count` staged pictures."""
        shares: dict[Stage, float] = {}
        with torch.inference_mode(), timer.shared(shares):
            if self._is_cuda:
                return self._run_on_cuda(count, shares)
            shares[Stage.INFERENCE] = 1.0
            probabilities, classes = self.classify(self._staging[:count])
            return TopK(probabilities.numpy(), classes.numpy())

    def _run_on_cuda(self, count: int, shares: dict[Stage, float]) -> TopK:
        start, copied, done = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        pictures = self._staging[:count].to(self.device, non_blocking=True)
        copied.record()
        probabilities, classes = self.classify(pictures)
        done.record()
        # The copy back is the one synchronisation; only after it the events can be read.
        top_k = TopK(probabilities.cpu().numpy(), classes.cpu().numpy())
        shares[Stage.TRANSFER] = start.elapsed_time(copied)
        shares[Stage.INFERENCE] = copied.elapsed_time(done)
        return top_k

    def classify(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """uint8 [batch, size, size, 3] on the device -> probabilities and classes [batch, k]."""
        probabilities = torch.softmax(
            self.model(self.normalise(pictures)).float(), dim=1
        )
        self.classes = probabilities.shape[1]
        best = torch.topk(probabilities, min(self._top_k, self.classes), dim=1)
        return best.values, best.indices

    def normalise(self, pictures: torch.Tensor) -> torch.Tensor:
        """uint8 [batch, size, size, 3] -> float32 [batch, 3, size, size], channels last.

        The result is a view of a buffer that the next call overwrites.
        """
        batch, size = pictures.shape[0], self.image_size
        rows = self._input[:batch]
        # Converted first: a multiply-add of mixed types does not vectorise.
        rows.copy_(pictures.reshape(batch, size, size * 3))
        torch.addcmul(self._row_bias, rows, self._row_scale, out=rows)
        return rows.view(batch, size, size, 3).permute(0, 3, 1, 2)

    def normalised(self, slot: int) -> torch.Tensor:
        """A staged picture as the model's input, float32 [1, 3, size, size]; for explanations."""
        picture = self._staging[slot : slot + 1].to(self.device)
        return self.normalise(picture).clone(memory_format=torch.contiguous_format)

    def warm_up(self) -> None:
        """Runs batches of 1, 2, 4, ... and `max_batch` pictures, so that no request pays for
        first-time work; sizes between them cost little more after that."""
        sizes = {self.max_batch, *(2**n for n in range(self.max_batch.bit_length()))}
        for count in sorted(sizes):
            self.run(count, StageTimer())
