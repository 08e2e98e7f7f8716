"""Runs an ONNX model that lies beside this file in the archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from offpath.handler.model.engines.engine import run_in_batches
from offpath.handler.model.engines.onnx_runtime import CPU, find_batch, make_session

MODEL = Path(__file__).with_name("model.onnx")


class OnnxModel(torch.nn.Module):
    """A model that ONNX Runtime runs on the CPU in fp32; engines are compared with it.

    The first call loads it. A worker whose engine passes the comparison never does.
    """

    def __init__(self, path: Path = MODEL) -> None:
        super().__init__()
        self.path = path
        self._session: Any = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps float32 [batch, channels, height, width] to [batch, classes]."""
        if self._session is None:
            threads = torch.get_num_threads()
            self._session = make_session(str(self.path), threads, [CPU])
        inputs = images.cpu().float().contiguous()
        batch = find_batch(self._session)
        return run_in_batches(self._run, inputs, batch).to(images.device)

    def _run(self, inputs: torch.Tensor) -> torch.Tensor:
        name = self._session.get_inputs()[0].name
        return torch.from_numpy(self._session.run(None, {name: inputs.numpy()})[0])
