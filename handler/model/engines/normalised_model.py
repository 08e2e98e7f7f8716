"""A model with its normalisation in front: what is exported, so that an engine can fuse the two."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from offpath.handler.model.normalise import scale_and_bias


class PictureModel(torch.nn.Module):
    """uint8 [batch, size, size, channels] -> logits, float32 [batch, classes].

    Args:
        model: maps normalised [batch, channels, size, size] to logits.
        mean, std: one for each channel, of pixels scaled to 0..1.
        dtype: what the model computes in; its weights are converted by the caller.
    """

    scale: torch.Tensor
    bias: torch.Tensor

    def __init__(
        self,
        model: torch.nn.Module,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.model = model
        self._dtype = dtype
        scale, bias = scale_and_bias(mean, std)
        self.register_buffer("scale", scale.view(1, -1, 1, 1))
        self.register_buffer("bias", bias.view(1, -1, 1, 1))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """uint8 [batch, size, size, channels] -> float32 [batch, classes]."""
        # Permuted, not copied: pixels lie as channels last wants them.
        planes = pictures.permute(0, 3, 1, 2).float()
        normalised = (planes * self.scale + self.bias).to(self._dtype)
        logits: torch.Tensor = self.model(normalised).float()
        return logits
