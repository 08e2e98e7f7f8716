"""PyTorch as it is: the reference that the other back ends are held to."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from offpath.handler.backends.folding import fold_normalisation
from offpath.handler.config import HandlerConfig
from offpath.handler.normalise import Normaliser

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class EagerBackend:
    """Normalisation and forward by torch, channels last.

    Args:
        model: maps float32 [batch, 3, size, size] to logits [batch, classes]; already on `device`.
        config: size, mean and std.
        device: where the model lives.
        precision: fp32, bf16 or fp16; below fp32 a copy of the model is converted, so that
            explanations keep theirs.
        fold: put the normalisation into the first convolution where that is possible.
    """

    name = "eager"
    is_capturable = True

    def __init__(
        self,
        model: torch.nn.Module,
        config: HandlerConfig,
        device: torch.device,
        precision: str = "fp32",
        fold: bool = True,
    ) -> None:
        self.precision = precision
        dtype = DTYPES[precision]
        folded = fold_normalisation(model, config, device, dtype) if fold else None
        self.is_folded = folded is not None
        self._forward: Callable[[torch.Tensor], torch.Tensor]
        if folded is not None:
            self._forward, model = folded, folded.model
        else:
            if dtype != torch.float32:
                model = copy.deepcopy(model).to(dtype)
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._normaliser = Normaliser(
                config.mean, config.std, config.image_size, device
            )
            self._forward = self._normalise_and_run
        self._dtype, self.model = dtype, model

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """See `Backend`."""
        return self._forward(pictures)

    def _normalise_and_run(self, pictures: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(self._normaliser(pictures).to(self._dtype))
        return logits
