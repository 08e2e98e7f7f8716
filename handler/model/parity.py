"""The parity gate: compares an engine with eager fp32 on photographs from the archive."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.errors import ConfigError
from offpath.handler.model.engines.engine import PARITY_FILE, Engine
from offpath.handler.model.outputs import activate


@dataclass(frozen=True)
class ParitySet:
    """Photographs with eager fp32's probabilities from when the archive was built.

    Attributes:
        images: uint8 [n, height, width, channels], as the handler decodes and resizes them.
        probabilities: float32 [n, classes].
    """

    images: npt.NDArray[np.uint8]
    probabilities: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Parity:
    """Distance between an engine's predictions and the reference.

    Attributes:
        largest_move: largest difference of any probability of any image.
        top1_changes: number of images whose best class changed.
    """

    largest_move: float
    top1_changes: int
    images: int

    def holds(self, bound: float) -> bool:
        """Returns True if no best class changed and no probability moved by more than `bound`.

        A probability that is NaN fails.
        """
        return self.top1_changes == 0 and self.largest_move <= bound


def load_parity_set(folder: Path | None, config: HandlerConfig) -> ParitySet | None:
    """Reads the parity file in an archive's engine folder; None if there is none.

    Raises:
        ConfigError: the file cannot be read, or its images have another size.
    """
    path = (folder or Path()) / PARITY_FILE
    if folder is None or not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            images, probabilities = arrays["images"], arrays["probabilities"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path.name} cannot be read ({error}); rebuild the archive") from error
    expected = config.input_geometry.shape
    if images.shape[1:] != expected:
        raise ConfigError(
            f"{path.name} holds images of shape {list(images.shape[1:])}, but the handler "
            f"makes {list(expected)}; rebuild the archive"
        )
    return ParitySet(images, probabilities)


def measure_parity(
    engine: Engine,
    reference: ParitySet,
    config: HandlerConfig,
    device: torch.device,
    batch: int = 4,
) -> Parity:
    """Runs the engine on the reference images, `batch` at a time, and compares.

    With softmax every change of the best class counts. Without softmax several labels of an image
    may all be near 1 and change places by meaningless amounts, so a change counts only if the
    reference separates the two classes by more than `parity_bound`.
    """
    answers = []
    with torch.inference_mode():
        for images in torch.from_numpy(reference.images).split(batch):
            scores = activate(engine(images.to(device)), config.activation)
            # Copied, because the engine's next call may overwrite its outputs.
            answers.append(scores.cpu().numpy().copy())
    probabilities = np.concatenate(answers)
    # The reference's lead of its own best class over the engine's; 0 where both are the same.
    rows, right = np.arange(len(probabilities)), reference.probabilities
    leads = right[rows, right.argmax(1)] - right[rows, probabilities.argmax(1)]
    least_lead = 0.0 if config.activation == "softmax" else config.parity_bound
    return Parity(
        largest_move=float(np.abs(probabilities - right).max()),
        top1_changes=int((leads > least_lead).sum()),
        images=len(probabilities),
    )
