"""A torch.export program that lies beside this file in the archive."""

from __future__ import annotations

import os
from pathlib import Path

import torch

PROGRAM = Path(__file__).with_name("program.pt2")


class Exported(torch.nn.Module):
    """Runs the program; it is in the mode that it was exported in.

    Args:
        path: of the program.
    """

    def __init__(self, path: Path = PROGRAM) -> None:
        super().__init__()
        # Overrides the weights_only=False of torch/export/pt2_archive/_package.py.
        before = os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD")
        os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
        try:
            self.program = torch.export.load(path).module()
        finally:
            del os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"]
            if before is not None:
                os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = before

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Whatever was exported: float32 [batch, channels, size, size] -> [batch, classes]."""
        outputs: torch.Tensor = self.program(pictures)
        return outputs

    def train(self, mode: bool = True) -> Exported:
        """A program has one mode only, and refuses to be told."""
        self.training = mode
        return self
