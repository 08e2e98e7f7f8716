"""The parity gate: a back end's answers beside eager fp32's, on photographs in the archive."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.handler.model.engines import Backend
from offpath.handler.model.head import activate


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


def load_parity_set(path: Path, image_size: int, channels: int = 3) -> ParitySet:
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
    expected = (image_size, image_size, channels)
    if pictures.shape[1:] != expected:
        raise ConfigError(
            f"{path.name} holds pictures of shape {list(pictures.shape[1:])}, the handler's are "
            f"{list(expected)}; build the archive anew"
        )
    return ParitySet(pictures, probabilities)


def measure_parity(
    backend: Backend,
    reference: ParitySet,
    config: HandlerConfig,
    device: torch.device,
    batch: int = 4,
) -> Parity:
    """Runs the reference's pictures, `batch` at a time.

    Several labels of a picture may all be near 1 and change places by moves that mean nothing: but
    for softmax, a best class has changed where the reference tells the two apart by more than the
    bound.
    """
    answers = []
    with torch.inference_mode():
        for pictures in torch.from_numpy(reference.pictures).split(batch):
            scores = activate(backend(pictures.to(device)), config.activation)
            # A copy: an engine's outputs may be overwritten by its next call.
            answers.append(scores.cpu().numpy().copy())
    probabilities = np.concatenate(answers)
    leads = find_leads(probabilities, reference.probabilities)
    shown_apart = 0.0 if config.activation == "softmax" else config.parity_bound
    return Parity(
        largest_move=float(np.abs(probabilities - reference.probabilities).max()),
        top1_changes=int((leads > shown_apart).sum()),
        pictures=len(probabilities),
    )


def find_leads(
    probabilities: npt.NDArray[np.float32], reference: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """By how much the reference's best class leads the one that is best now; [n], 0 where equal."""
    rows = np.arange(len(reference))
    leads: npt.NDArray[np.float32] = (
        reference[rows, reference.argmax(1)] - reference[rows, probabilities.argmax(1)]
    )
    return leads
