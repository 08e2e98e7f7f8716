"""Weights that the workers of a host share: mapped from the archive's file, and never copied.

A copy costs each worker the model's size again. Three things would make one: reading the file
instead of mapping it, a model that first fills its own weights with random numbers (which freed
memory the process keeps), and another memory layout than the engine's; offpath's archives hold
convolutions channels last, as the engine wants them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

RANDOM_FILLS = {
    torch.Tensor.erfinv_,  # the slow part of trunc_normal_
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
    # These three are seen as a whole, with their tensor by name; the others by what they call.
    torch.nn.init.kaiming_uniform_,
    torch.nn.init.normal_,
    torch.nn.init.uniform_,
}


class RandomFillsSkipped(TorchFunctionMode):
    """Leaves a new model's parameters unfilled: their memory is then never touched.

    Parameters only. They are all in the state dict that comes next (a missing one is an error);
    a buffer need not be in there.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        arguments = dict(kwargs or {})
        if func in RANDOM_FILLS:
            tensor = args[0] if args else arguments["tensor"]
            if isinstance(tensor, torch.nn.Parameter):
                return tensor
        return func(*args, **arguments)


def make_with_weights(
    make_model: Callable[[], torch.nn.Module], path: str
) -> torch.nn.Module:
    """A new model with the state dict of a file, on the CPU, its pages shared.

    Raises:
        RuntimeError: the weights do not fit the model.
        pickle.UnpicklingError: the file holds more than tensors.
    """
    weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    with RandomFillsSkipped():
        model = make_model()
    model.load_state_dict(weights, assign=True)
    return model.float()  # weights saved in half precision
