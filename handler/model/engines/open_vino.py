"""OpenVINO on the CPU: the fastest engine on most Intel processors, above all in int8."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from offpath.handler.model.engines.engine import EngineUnavailable, find_artefact, run_in_batches

# Precision -> the type in which layers that are not quantised compute.
_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}


def forbid_telemetry() -> None:
    """Makes the telemetry package impossible to import.

    openvino and nncf otherwise report each import and conversion over the network.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


class OpenVinoEngine:
    """Runs `model.<precision>.xml` with the weights file beside it.

    Args:
        precision: fp32, bf16 or int8.

    Raises:
        EngineUnavailable: the file or the package is missing.
    """

    name = "openvino"
    is_capturable = False

    def __init__(self, folder: Path | None, precision: str, threads: int) -> None:
        self.precision = precision
        path = find_artefact(folder, self.name, precision)
        forbid_telemetry()
        try:
            import openvino
        except ImportError as error:
            raise EngineUnavailable(
                f"engine openvino needs openvino ({error}): "
                "pip install 'torchserve-offpath[openvino]'"
            ) from error
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            # With pinning every worker would pin its threads to the same first cores.
            "ENABLE_CPU_PINNING": False,
        }
        self._compiled = openvino.compile_model(str(path), "CPU", settings)
        self._request = self._compiled.create_infer_request()
        batch = self._compiled.input(0).partial_shape[0]
        self._batch = None if batch.is_dynamic else int(batch.get_length())

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return run_in_batches(self._run, images, self._batch)

    def _run(self, images: torch.Tensor) -> torch.Tensor:
        # Nothing is copied: the input is the batch buffer, the output belongs to the request and
        # is valid until the next call.
        answer = self._request.infer([images.numpy()], share_inputs=True, share_outputs=True)
        return torch.from_numpy(answer[0])
