"""Takes the scores from what a model returns, for every engine and for the archive builder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from offpath.handler.errors import ConfigError

# The name of an output in a dict or an object, or its position in a tuple.
Output = str | int


class OneOutput(torch.nn.Module):
    """A model cut down to one of its outputs, so that every engine and export has the same one.

    Args:
        model: returns a dict, an object or a tuple.
        output: what to take of that.
    """

    def __init__(self, model: torch.nn.Module, output: Output) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps float32 [batch, channels, height, width] to [batch, classes]."""
        taken: torch.Tensor = take_output(self.model(images), self.output)
        return taken


def keep_one_output(model: torch.nn.Module, output: Output | None) -> torch.nn.Module:
    """Returns a model of only this output; the model itself if `output` is None."""
    return model if output is None else OneOutput(model, output)


def take_output(outputs: Any, output: Output) -> Any:
    """Takes the named output out of all that the model returned.

    Raises:
        LookupError, AttributeError or TypeError: there is no such output.
    """
    if isinstance(output, int) or isinstance(outputs, Mapping):
        return outputs[output]
    return getattr(outputs, output)


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
