"""Loads a torch.export program that lies beside this file in the archive."""

from __future__ import annotations

import os
from pathlib import Path

import torch

PROGRAM = Path(__file__).with_name("program.pt2")


class Exported(torch.nn.Module):
    """A model that runs the program, always in the mode in which it was exported."""

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

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps float32 [batch, channels, height, width] to [batch, classes]."""
        outputs: torch.Tensor = self.program(images)
        return outputs

    def train(self, mode: bool = True) -> Exported:
        """Only records the mode: a program has a single mode, and raises if told to change."""
        self.training = mode
        return self
