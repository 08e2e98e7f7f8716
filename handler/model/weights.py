"""Maps weights from the archive's file, so that the workers of a host share them without a copy.

A copy would cost each worker the model's size again. Three things would cause one: reading the file
instead of mapping it; a model that first fills its own weights with random numbers, whose memory
the process keeps after freeing; and a memory layout other than the engine's. offpath's archives
therefore hold convolutions channels last, as the engine needs them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

RANDOM_FILLS = {
    torch.Tensor.erfinv_,  # the slow part of trunc_normal_
    torch.Tensor.normal_,
    torch.Tensor.uniform_,
    # These three are intercepted as a whole, with their tensor as a named argument; the other
    # initialisers are intercepted through what they call.
    torch.nn.init.kaiming_uniform_,
    torch.nn.init.normal_,
    torch.nn.init.uniform_,
}


class RandomFillsSkipped(TorchFunctionMode):
    """Leaves a new model's parameters unfilled, so that their memory is never touched.

    Buffers are filled as usual: every parameter is in the state dict that is loaded next (a missing
    one is an error), but a buffer need not be.
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


def make_with_weights(make_model: Callable[[], torch.nn.Module], path: str) -> torch.nn.Module:
    """Makes a model on the CPU whose weights are mapped from a file with a state dict.

    Raises:
        RuntimeError: the weights do not fit the model.
        pickle.UnpicklingError: the file holds anything but tensors.
    """
    weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    with RandomFillsSkipped(), working_folder(Path(path).parent):
        model = make_model()
    # A class may override the method, to convert its old checkpoints and without `assign`. The
    # archive's weights are converted already.
    torch.nn.Module.load_state_dict(model, weights, assign=True)
    return model.float()  # a copy only if the weights were saved in half precision


@contextlib.contextmanager
def working_folder(folder: Path) -> Iterator[None]:
    """Changes to a folder for a while: a model's code may open files of its archive by name.

    TorchServe's workers live there; those of other servers do not.
    """
    before = os.open(".", os.O_RDONLY)  # its path may be gone
    os.chdir(folder)
    try:
        yield
    finally:
        os.fchdir(before)
        os.close(before)
