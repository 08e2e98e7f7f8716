"""Turns a model's outputs into scores, for every engine and for the archive builder."""

from __future__ import annotations

import torch

from offpath.handler.errors import ConfigError


def activate(outputs: torch.Tensor, activation: str) -> torch.Tensor:
    """Applies the setting `activation`.

    Args:
        outputs: the model's outputs, [batch, classes], of any floating-point type.
        activation: `softmax`, `sigmoid`, or `none` for a model that ends with its own.

    Returns:
        float32 [batch, classes]; with `none` the same memory as `outputs` if they are float32.

    Raises:
        ConfigError: `auto`, which only the archive builder can decide.
    """
    scores = outputs.float()
    if activation == "softmax":
        return torch.softmax(scores, dim=1)
    if activation == "sigmoid":
        return torch.sigmoid(scores)
    if activation == "none":
        return scores
    raise ConfigError(
        f"handler.activation is {activation!r}, which only the archive builder can decide; "
        "accepted by a worker: softmax, sigmoid, none"
    )
