"""ONNX Runtime on the CPU or on CUDA, and TensorRT through it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.utils.dlpack

from offpath.handler.model.engines.engine import (
    INPUT,
    EngineUnavailable,
    find_artefact,
    run_in_batches,
)

CPU, CUDA, TENSORRT = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt"))
# Batches that TensorRT's engine takes, and the one that it is fastest for (the preset t4's).
# Without such a profile it builds an engine again for each batch that is larger than any before.
TRT_BATCHES = {"min": 1, "opt": 16, "max": 64}


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
        name: `onnxruntime` or `tensorrt`.
        threads: intra-op threads on the CPU.
        shape: of one image, [height, width, channels].

    Raises:
        EngineUnavailable: the file, the package or the provider is missing.
    """

    # The session waits for its own stream.
    is_capturable = False

    def __init__(
        self,
        name: str,
        folder: Path | None,
        precision: str,
        device: torch.device,
        threads: int,
        shape: tuple[int, int, int],
    ) -> None:
        self.name, self.precision = name, precision
        path = find_artefact(folder, name, precision)
        trt = make_trt_options(path.parent, shape) if name == "tensorrt" else {}
        providers = self._choose_providers(device, trt)
        self._session = make_session(str(path), threads, providers)
        self._input = self._session.get_inputs()[0].name
        self._output = self._session.get_outputs()[0].name
        self._batch = find_batch(self._session)
        self._device = device

    def _choose_providers(self, device: torch.device, trt: dict[str, Any]) -> list[Any]:
        wanted: list[Any] = [CPU]
        if device.type == "cuda":
            place = {"device_id": device.index or 0}
            wanted = [(CUDA, {**place, "use_tf32": False})]
            if self.name == "tensorrt":
                fp16 = {"trt_fp16_enable": self.precision == "fp16"}
                wanted.insert(0, (TENSORRT, {**place, **fp16, **trt}))
        elif self.name == "tensorrt":
            raise EngineUnavailable("engine tensorrt needs a CUDA device")
        return wanted

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return run_in_batches(self._run, images, self._batch)

    def _run(self, images: torch.Tensor) -> torch.Tensor:
        if self._device.type == "cpu":
            return torch.from_numpy(
                self._session.run([self._output], {self._input: images.numpy()})[0]
            )
        return self._run_on_device(images.contiguous())

    def _run_on_device(self, images: torch.Tensor) -> torch.Tensor:
        """Runs without a copy: the session reads torch's memory and leaves the logits there."""
        import numpy as np

        binding = self._session.io_binding()
        # The session runs on its own stream.
        torch.cuda.current_stream(self._device).synchronize()
        where = ("cuda", self._device.index or 0)
        binding.bind_input(self._input, *where, np.uint8, tuple(images.shape), images.data_ptr())
        binding.bind_output(self._output, *where)
        self._session.run_with_iobinding(binding)
        return torch.utils.dlpack.from_dlpack(binding.get_outputs()[0])


def make_trt_options(folder: Path, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Returns the options with which TensorRT builds one engine and stores it in `folder`."""
    profile = {
        f"trt_profile_{name}_shapes": f"{INPUT}:{'x'.join(map(str, (batch, *shape)))}"
        for name, batch in TRT_BATCHES.items()
    }
    cache = {"trt_engine_cache_enable": True, "trt_engine_cache_path": str(folder)}
    return {**profile, **cache}
