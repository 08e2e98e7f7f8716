"""TorchScript: the graph traced when the archive was built, frozen on loading."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from offpath.handler.backends.artefacts import find_artefact


class TorchScriptBackend:
    """Runs `model.<precision>.ts`."""

    name = "torchscript"
    is_capturable = True

    def __init__(
        self, folder: Path | None, precision: str, device: torch.device
    ) -> None:
        self.precision = precision
        path = find_artefact(folder, self.name, precision)
        with warnings.catch_warnings():
            # Deprecated, not removed; what follows it is the engine `compiled`.
            warnings.filterwarnings("ignore", message=".*torch.jit.*")
            module = torch.jit.load(str(path), map_location=device).eval()
            self._module = torch.jit.freeze(module)

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """See `Backend`."""
        logits: torch.Tensor = self._module(pictures)
        return logits
