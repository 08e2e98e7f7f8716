"""Runs graphs that take one batch size only on batches of any size."""

from __future__ import annotations

from collections.abc import Callable

import torch


def run_in_batches(
    run: Callable[[torch.Tensor], torch.Tensor],
    pictures: torch.Tensor,
    size: int | None,
) -> torch.Tensor:
    """Splits a batch into parts of `size` pictures, and fills the last part up with zeros.

    Cost: each part takes as long as a whole one. If `size` is None, the graph takes any batch.
    """
    if size is None:
        return run(pictures)
    answers = []
    for part in pictures.split(size):
        missing = part.new_zeros((size - len(part), *part.shape[1:]))
        padded = torch.cat([part, missing]) if len(missing) else part
        # Copied, because the next call may overwrite the answers.
        answers.append(run(padded)[: len(part)].clone())
    return torch.cat(answers)
