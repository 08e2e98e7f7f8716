"""OpenVINO on the CPU: the quickest on most Intel processors, above all in int8."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from offpath.handler.model.engines import BackendUnavailable
from offpath.handler.model.engines.artefacts import find_artefact

# precision -> what layers that are not quantised compute in.
_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}


def forbid_telemetry() -> None:
    """openvino and nncf report each import and conversion over the network, unless the package
    that does it cannot be imported."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


class OpenVinoBackend:
    """Runs `model.<precision>.xml`, weights beside it.

    Args:
        folder: the archive's engine folder.
        precision: fp32, bf16 or int8.
        threads: of inference.

    Raises:
        BackendUnavailable: the package is not there.
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
            raise BackendUnavailable(
                f"engine openvino needs openvino ({error}): "
                "pip install 'torchserve-offpath[openvino]'"
            ) from error
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            # Every worker would pin its threads to the same first cores.
            "ENABLE_CPU_PINNING": False,
        }
        self._compiled = openvino.compile_model(str(path), "CPU", settings)
        self._request = self._compiled.create_infer_request()

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """See `Backend`. The logits are valid until the next call."""
        # Shared, not copied: the input is the batch buffer, the output the request's own.
        answer = self._request.infer(
            [pictures.numpy()], share_inputs=True, share_outputs=True
        )
        return torch.from_numpy(answer[0])
