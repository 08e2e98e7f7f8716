"""torchvision's ResNet-50 with 1000 classes."""

from __future__ import annotations

import os

import torch
from torchvision.models import resnet

# Number of times that each batch is computed. A fast accelerator so stands in for a slow one.
REPEATS_VARIABLE = "OFFPATH_RESNET50_REPEATS"


class ResNet50(resnet.ResNet):
    """The network of `torchvision.models.resnet50()`; its state dicts fit."""

    def __init__(self) -> None:
        super().__init__(resnet.Bottleneck, [3, 4, 6, 3])
        self._repeats = int(os.environ.get(REPEATS_VARIABLE, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps float32 [batch, 3, 224, 224] to logits [batch, 1000]."""
        for _ in range(self._repeats):
            logits = super().forward(images)
        return logits  # type: ignore[no-any-return]
