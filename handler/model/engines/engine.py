"""The interface of an engine, and the names of what an archive holds for each.

An archive keeps its artefacts in one folder beside the weights. Each artefact maps `images`,
uint8 [batch, height, width, channels], to `logits`, float32 [batch, classes].
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # settings are checked without torch
    import torch

# Engine -> the precisions it can run.
PRECISIONS: dict[str, tuple[str, ...]] = {
    "eager": ("fp32", "bf16", "fp16"),
    "onnxruntime": ("fp32",),
    "openvino": ("fp32", "bf16", "int8"),
}
ENGINES = tuple(PRECISIONS)

FOLDER = "engine"
INPUT, OUTPUT = "images", "logits"
PARITY_FILE = "parity.npz"
# OpenVINO lowers fp32 to bf16 itself.
_STORED_AS = {("openvino", "bf16"): "fp32"}
_SUFFIXES = {"onnxruntime": "onnx", "openvino": "xml"}


class EngineUnavailable(Exception):
    """An engine cannot run here; the message gives the reason and what to do."""


class Engine(Protocol):
    """The model's forward pass, normalisation included.

    Attributes:
        name: one of ENGINES.
        precision: one of its PRECISIONS.
        is_capturable: all work runs on torch's current CUDA stream, so a CUDA graph can hold it.
    """

    name: str
    precision: str
    is_capturable: bool

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Maps uint8 [batch, height, width, channels] on the device to logits [batch, classes].

        The logits may be valid only until the next call.
        """


def artefact_name(engine: str, precision: str) -> str | None:
    """Returns the file an engine loads; None for eager, which runs the model itself."""
    if engine not in _SUFFIXES:
        return None
    stored = _STORED_AS.get((engine, precision), precision)
    return f"model.{stored}.{_SUFFIXES[engine]}"


def has_artefact(folder: Path | None, engine: str, precision: str) -> bool:
    name = artefact_name(engine, precision)
    return folder is not None and name is not None and (folder / name).is_file()


def find_artefact(folder: Path | None, engine: str, precision: str) -> Path:
    """Returns the engine's file in the archive's engine folder.

    Raises:
        EngineUnavailable: the file does not exist.
    """
    name = artefact_name(engine, precision)
    if name is None:
        raise ValueError(f"engine {engine!r} has no artefact")
    path = (folder or Path(FOLDER)) / name
    if not path.is_file():
        raise EngineUnavailable(
            f"the archive has no {FOLDER}/{name}; build it for engine {engine!r} with precision "
            f"{precision!r}"
        )
    return path


def run_in_batches(
    run: Callable[[torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    size: int | None,
) -> torch.Tensor:
    """Splits a batch into parts of `size` images, and fills the last part up with zeros.

    Cost: each part takes as long as a whole one. If `size` is None, the graph takes any batch.
    """
    import torch

    if size is None:
        return run(images)
    answers = []
    for part in images.split(size):
        missing = part.new_zeros((size - len(part), *part.shape[1:]))
        padded = torch.cat([part, missing]) if len(missing) else part
        # Copied, because the next call may overwrite the answers.
        answers.append(run(padded)[: len(part)].clone())
    return torch.cat(answers)
