"""The model's outputs -> scores: the one place, for every engine, the gate and the builder."""

from __future__ import annotations

import torch

from offpath.handler.errors import ConfigError


def activate(outputs: torch.Tensor, activation: str) -> torch.Tensor:
    """Applies the setting `activation`.

    Args:
        outputs: of the model, [batch, classes], of any floating-point type.
        activation: `softmax`, `sigmoid`, or `none` for a model that ends with its own.

    Returns:
        float32 [batch, classes]; with `none` the outputs' own memory where they are float32.

    Raises:
        ConfigError: `auto`, which only the archive's builder can decide.
    """
    scores = outputs.float()
    if activation == "softmax":
        return torch.softmax(scores, dim=1)
    if activation == "sigmoid":
        return torch.sigmoid(scores)
    if activation == "none":
        return scores
    raise ConfigError(
        f"handler.activation is {activation!r}, which `offpath archive` decides; a worker needs "
        "softmax, sigmoid or none"
    )
