"""Keeps out of a worker's start what TorchServe's and torchvision's modules import and no
prediction needs: 4.2 s of CPU and 170 MB per worker where openvino is installed, 2 s without.

- ts/torch_handler/vision_handler.py imports captum, which explanations alone need.
- ts/torch_handler/base_handler.py imports openvino.torch (torch.compile and half of torch with
  it), onnxruntime and torch_tensorrt for models of its own, wherever they are installed.
- torchvision/ops/roi_align.py imports torch._dynamo for one question that detectors ask on CUDA.

While those modules are imported, stand-ins have these names; each imports the real module when
somebody asks it for something. Python 3.15's lazy imports (PEP 810) will do the same.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


class StandIn(ModuleType):
    """A module that is imported when something is asked of it that it was not given here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system's own questions
            raise AttributeError(name)
        return getattr(self._import(), name)

    def _import(self) -> ModuleType:
        """The real module; takes this one's name away from it where it still has it."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


class IntegratedGradients:
    """captum's class of that name, imported and made at the first explanation."""

    def __init__(self, forward_func: Any, *args: Any, **kwargs: Any) -> None:
        self._arguments = (forward_func, *args), kwargs
        self._real: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._real is None:
            args, kwargs = self._arguments
            captum = importlib.import_module("captum.attr")
            self._real = captum.IntegratedGradients(*args, **kwargs)
        return getattr(self._real, name)


def is_compile_supported(device_type: str) -> bool:
    """torch._dynamo's function of that name."""
    dynamo = importlib.import_module("torch._dynamo.utils")
    return bool(dynamo.is_compile_supported(device_type))


# What the importing modules take out of them by `from ... import`.
TAKEN: dict[str, dict[str, Any]] = {
    "captum.attr": {"IntegratedGradients": IntegratedGradients},
    "onnxruntime": {},
    "openvino": {},
    "openvino.torch": {},
    "torch._dynamo.utils": {"is_compile_supported": is_compile_supported},
    "torch_tensorrt": {},
}


@contextlib.contextmanager
def unused_imports_deferred() -> Iterator[None]:
    """While it is open, importing a module of `TAKEN` costs nothing.

    A module that is not installed stays missing, one that was imported before stays as it is, and
    when the block ends the names are free: whoever imports one later gets the real module.
    """
    stand_ins = {
        name: make_stand_in(name)
        for name in TAKEN
        if name not in sys.modules and is_installed(name)
    }
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]


def make_stand_in(name: str) -> StandIn:
    """The stand-in for one module of `TAKEN`."""
    stand_in = StandIn(name)
    vars(stand_in).update(TAKEN[name])
    return stand_in


def is_installed(name: str) -> bool:
    """Whether the module's package can be found; imports nothing."""
    return importlib.util.find_spec(name.partition(".")[0]) is not None
