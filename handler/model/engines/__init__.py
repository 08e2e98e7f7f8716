"""Back ends: what maps pictures to logits. One small interface; all but eager optional.

`choose.py` picks one and holds it to the parity bound; each other module is one back end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the settings are checked without torch
    import torch

# Engine -> precisions it can run. What each needs in the archive: artefacts.py.
PRECISIONS: dict[str, tuple[str, ...]] = {
    "eager": ("fp32", "bf16", "fp16"),
    "compiled": ("fp32", "bf16", "fp16"),
    "onnxruntime": ("fp32", "int8"),
    "openvino": ("fp32", "bf16", "int8"),
    "tensorrt": ("fp32", "fp16"),
}
ENGINES = tuple(PRECISIONS)


class BackendUnavailable(Exception):
    """A back end that cannot run here; the message says why and what to do."""


class Backend(Protocol):
    """The model's forward, normalisation included.

    Attributes:
        name: one of ENGINES.
        precision: one of its PRECISIONS.
        is_capturable: runs on torch's current CUDA stream only, so that a CUDA graph can hold it.
    """

    name: str
    precision: str
    is_capturable: bool

    def __call__(self, pictures: torch.Tensor) -> torch.Tensor:
        """uint8 [batch, size, size, 3] on the device -> logits [batch, classes]."""
