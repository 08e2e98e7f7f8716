"""Takes the scores from a model that returns more than one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

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

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Maps float32 [batch, channels, height, width] to [batch, classes]."""
        taken: torch.Tensor = take_output(self.model(pictures), self.output)
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
