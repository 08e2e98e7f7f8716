"""The archive's parity file: photographs with the answers of eager fp32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from offpath.handler.config import HandlerConfig
from offpath.handler.image.decode import Pixels
from offpath.handler.model.engines.eager import EagerBackend
from offpath.handler.model.head import activate
from offpath.handler.model.parity import ParitySet

PICTURES = 16
BATCH = 8


def make_parity_set(
    model: torch.nn.Module,
    config: HandlerConfig,
    candidates: Pixels,
    count: int = PICTURES,
) -> ParitySet:
    """Answers of eager fp32 on the CPU, for 16 candidates, those with a clear answer first.

    Args:
        model: maps normalised float32 [batch, 3, size, size] to outputs.
        config: size, mean, std, activation and the bound.
        candidates: uint8 [n, size, size, 3].
    """
    backend = EagerBackend(model, config, torch.device("cpu"))
    with torch.inference_mode():
        answers = [
            activate(backend(pictures), config.activation)
            for pictures in torch.from_numpy(candidates).split(BATCH)
        ]
    probabilities = torch.cat(answers).numpy()
    chosen = choose_clear(probabilities, config.parity_bound, count)
    return ParitySet(candidates[chosen], probabilities[chosen])


def choose_clear(
    probabilities: npt.NDArray[np.float32], bound: float, count: int = PICTURES
) -> npt.NDArray[np.int64]:
    """Which pictures to compare on: those whose best two classes lie further apart than `bound`.

    Nearer ones may change places by moves that the bound allows (eager itself flips some of them
    with another batch size), so their best class says nothing. Where fewer than `count` are clear,
    the clearest of the others follow.

    Returns:
        Indices, ascending.
    """
    best = np.sort(probabilities, axis=1)[:, -2:]
    margin = best[:, -1] - best[:, 0] if best.shape[1] > 1 else best[:, 0]
    clear = np.flatnonzero(margin > bound)
    if len(clear) > count:
        # Spread over the candidates, not the clearest: those hardly move at all.
        spread = np.linspace(0, len(clear) - 1, count).round().astype(np.int64)
        return clear[spread].astype(np.int64)
    clearest: npt.NDArray[np.int64] = np.argsort(-margin, kind="stable")[:count]
    return np.sort(clearest)


def write_parity_file(path: Path, parity: ParitySet) -> None:
    """Writes what `handler.parity.load_parity_set` reads; the same set gives the same bytes."""
    np.savez(path, pictures=parity.pictures, probabilities=parity.probabilities)
