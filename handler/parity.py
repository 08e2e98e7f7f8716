"""The parity gate: a back end's answers beside eager fp32's, on photographs in the archive."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offpath.handler.backends import Backend
from offpath.handler.errors import ConfigError


@dataclass(frozen=True)
class ParitySet:
    """Photographs and what eager fp32 answered when the archive was built.

    Attributes:
        pictures: uint8 [n, size, size, 3], as the handler decodes and resizes them.
        probabilities: float32 [n, classes].
    """

    pictures: npt.NDArray[np.uint8]
    probabilities: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Parity:
    """How far a back end's answers are from the reference.

    Attributes:
        largest_move: of any probability of any picture.
        top1_changes: pictures whose best class is another.
        pictures: how many were compared.
    """

    largest_move: float
    top1_changes: int
    pictures: int

    def holds(self, bound: float) -> bool:
        """No best class changed and no probability moved by more than `bound` (NaN does not)."""
        return self.top1_changes == 0 and self.largest_move <= bound


def load_parity_set(path: Path, image_size: int) -> ParitySet:
    """Reads an archive's parity file.

    Raises:
        ConfigError: it is not one, or its pictures have another size.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            pictures, probabilities = arrays["pictures"], arrays["probabilities"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{path.name} cannot be read ({error}); build the archive anew"
        ) from error
    if pictures.shape[1:] != (image_size, image_size, 3):
        raise ConfigError(
            f"{path.name} holds pictures of shape {list(pictures.shape[1:])}, the handler's are "
            f"[{image_size}, {image_size}, 3]; build the archive anew"
        )
    return ParitySet(pictures, probabilities)


def measure_parity(
    backend: Backend, reference: ParitySet, device: torch.device, batch: int = 4
) -> Parity:
    """Runs the reference's pictures, `batch` at a time."""
    answers = []
    with torch.inference_mode():
        for pictures in torch.from_numpy(reference.pictures).split(batch):
            logits = backend(pictures.to(device)).float()
            answers.append(torch.softmax(logits, 1).cpu().numpy())
    probabilities = np.concatenate(answers)
    return Parity(
        largest_move=float(np.abs(probabilities - reference.probabilities).max()),
        top1_changes=int(
            (probabilities.argmax(1) != reference.probabilities.argmax(1)).sum()
        ),
        pictures=len(probabilities),
    )
