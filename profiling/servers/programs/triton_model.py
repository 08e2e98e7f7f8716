"""The classifier in Triton's python backend; a copy of this file is the backend's model.py.

See https://github.com/triton-inference-server/python_backend
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from offpath.profiling.servers.programs.program_settings import ProgramSettings


class TritonPythonModel:
    """Classifies photographs inside Triton."""

    def initialize(self, args: dict[str, str]) -> None:
        self._classify = ProgramSettings.from_environment().load_classifier()

    def execute(self, requests: list[Any]) -> list[Any]:
        inputs = [pb_utils.get_input_tensor_by_name(request, "IMAGE") for request in requests]
        images = [tensor.as_numpy()[0, 0] for tensor in inputs]
        return [make_response(answer) for answer in self._classify(images)]


def make_response(answer: dict[str, float]) -> Any:
    labels = np.array([[label.encode() for label in answer]], dtype=np.object_)
    probabilities = np.array([list(answer.values())], dtype=np.float32)
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("LABEL", labels),
            pb_utils.Tensor("PROBABILITY", probabilities),
        ]
    )
