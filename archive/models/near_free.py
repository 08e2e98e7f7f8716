"""A model that costs next to nothing: stands in for an accelerator when the path is measured."""

from __future__ import annotations

import os
import time

import torch

# A batch's time, in ms, on the accelerator that it stands in for: workers wait and use no core.
WAIT_VARIABLE = "OFFPATH_NEAR_FREE_WAIT_MS"


class NearFree(torch.nn.Module):
    """Means over blocks of 32 x 32, at 224 px a grid of 7 x 7, and one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3 * 7 * 7, 1000)
        self._wait_s = float(os.environ.get(WAIT_VARIABLE, 0)) / 1000

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """float32 [batch, 3, 224, 224] -> logits [batch, 1000]."""
        if self._wait_s:
            time.sleep(self._wait_s)
        blocks = pictures.unflatten(3, (-1, 32)).unflatten(2, (-1, 32))
        # Two means, rows first: AvgPool2d(32) takes 0.2 to 0.28 ms a picture, this 0.04 to 0.1.
        return self.linear(blocks.mean(3).mean(4).flatten(1))  # type: ignore[no-any-return]
