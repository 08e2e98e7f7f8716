"""Plain PyTorch, the reference for all other engines."""

from __future__ import annotations

import copy

import torch
from torch.fx.experimental.optimization import fuse

from offpath.handler.config import HandlerConfig
from offpath.handler.model.normalise import Normaliser

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class EagerEngine:
    """Runs normalisation and forward pass by torch, channels last.

    Args:
        model: maps float32 [batch, channels, height, width] to logits [batch, classes]; already on
            `device`.
        config: gives size, mean, std, and the scale and the order of the channels.
        precision: fp32, bf16 or fp16. Below fp32 a copy of the model is converted, so that
            explanations keep the original. On CUDA the copy's batch norms are folded.
    """

    name = "eager"
    is_capturable = True

    def __init__(
        self,
        model: torch.nn.Module,
        config: HandlerConfig,
        device: torch.device,
        precision: str = "fp32",
    ) -> None:
        self.precision = precision
        self._dtype = DTYPES[precision]
        if self._dtype != torch.float32:
            model = (fold_batch_norms if device.type == "cuda" else copy.deepcopy)(model)
            model.to(self._dtype)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model = model
        self._normaliser = Normaliser(config, device)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(self._normaliser(images).to(self._dtype))
        return logits


def fold_batch_norms(model: torch.nn.Module) -> torch.nn.Module:
    """Returns a copy in which convolutions do the work of the batch norms that follow them.

    A GPU then launches about a third fewer kernels for a ResNet; a CPU gains nothing. A model that
    torch.fx cannot trace, TorchScript for instance, is copied as it is.
    """
    try:
        return fuse(model)
    # Tracing runs the model's code with stand-ins, which may raise anything.
    except Exception:
        return copy.deepcopy(model)
