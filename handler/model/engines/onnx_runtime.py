"""ONNX Runtime on the CPU or on CUDA, for models that are ONNX files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from offpath.handler.model.engines.engine import EngineUnavailable, find_artefact, run_in_batches

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# Log messages of this severity and above are printed: errors.
LOG_SEVERITY = 3


def make_session(model: str | bytes, threads: int, providers: Sequence[Any]) -> Any:
    """Loads a graph by its path or content, and returns ONNX Runtime's session.

    Raises:
        EngineUnavailable: onnxruntime, or its first provider, is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise EngineUnavailable(
            f"the model needs onnxruntime ({error}): pip install onnxruntime, or onnxruntime-gpu "
            "on CUDA"
        ) from error
    needed = providers[0] if isinstance(providers[0], str) else providers[0][0]
    if needed not in onnxruntime.get_available_providers():
        raise EngineUnavailable(
            f"this onnxruntime has no {needed}; on CUDA install onnxruntime-gpu"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = LOG_SEVERITY
    # Threads that spin while they wait take the other worker's core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, list(providers))


def find_batch(session: Any) -> int | None:
    """Returns the only batch size that a graph takes; None if it takes any."""
    batch = session.get_inputs()[0].shape[0]
    return batch if isinstance(batch, int) else None


class OnnxRuntimeEngine:
    """Runs `model.<precision>.onnx`.

    Args:
        threads: intra-op threads on the CPU.

    Raises:
        EngineUnavailable: the file, the package or the provider is missing.
    """

    name = "onnxruntime"
    # The session waits for its own stream.
    is_capturable = False

    def __init__(
        self, folder: Path | None, precision: str, device: torch.device, threads: int
    ) -> None:
        self.precision = precision
        path = find_artefact(folder, self.name, precision)
        on_cuda = (CUDA, {"device_id": device.index or 0, "use_tf32": False})
        self._session = make_session(
            str(path), threads, [on_cuda if device.type == "cuda" else CPU]
        )
        self._input = self._session.get_inputs()[0].name
        self._batch = find_batch(self._session)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return run_in_batches(self._run, images, self._batch)

    def _run(self, images: torch.Tensor) -> torch.Tensor:
        answer = self._session.run(None, {self._input: images.cpu().numpy()})[0]
        return torch.from_numpy(answer).to(images.device)
