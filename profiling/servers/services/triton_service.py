"""The model.py of Triton's python backend, copied into the model repository.

https://github.com/triton-inference-server/python_backend: `execute` gets what the dynamic batcher
collected, one response for each request.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

from offpath.profiling.servers.services.classifiers import Labels
from offpath.profiling.servers.services.settings import ServiceSettings


class TritonPythonModel:
    """Classifies photographs, or a thin client's pixels."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the model, once for each instance."""
        self._classify = ServiceSettings.from_environment().load_classifier()

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers a batch; each request holds one photograph."""
        inputs = [
            pb_utils.get_input_tensor_by_name(request, "IMAGE") for request in requests
        ]
        answers = self._classify([read_image(tensor.as_numpy()) for tensor in inputs])
        return [make_response(answer) for answer in answers]


def read_image(array: Any) -> bytes:
    """The file of a BYTES tensor [1, 1]; the pixels of a UINT8 tensor [1, size, size, 3]."""
    image: bytes = array[0, 0] if array.dtype == np.object_ else array.tobytes()
    return image


def make_response(answer: Labels) -> Any:
    """Labels and probabilities, best first."""
    labels = np.array([[label.encode() for label in answer]], dtype=np.object_)
    probabilities = np.array([list(answer.values())], dtype=np.float32)
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("LABEL", labels),
            pb_utils.Tensor("PROBABILITY", probabilities),
        ]
    )
