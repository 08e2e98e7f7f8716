"""Defers imports of TorchServe and torchvision that no prediction needs.

They cost each worker 4.2 s of CPU and 170 MB if openvino is installed, and 2 s without openvino.

- ts/torch_handler/vision_handler.py imports captum, which only explanations need.
- ts/torch_handler/base_handler.py imports openvino.torch (with torch.compile and half of torch),
  onnxruntime and torch_tensorrt for its own models, if they are installed.
- torchvision/ops/roi_align.py imports torch._dynamo for one check that detectors make on CUDA.

While those modules are imported, stand-ins take these names in sys.modules. A stand-in imports the
real module on the first access to an attribute. Python 3.15's lazy imports (PEP 810) will do the
same.
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
    """A module that imports the real one on access to an attribute that it does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system looks at such names
            raise AttributeError(name)
        return getattr(self._import(), name)

    def _import(self) -> ModuleType:
        """Imports the real module, after giving up this stand-in's name."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


class IntegratedGradients:
    """Stands for captum's class, which is imported and created at the first explanation."""

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
    """Calls torch._dynamo's function of the same name."""
    dynamo = importlib.import_module("torch._dynamo.utils")
    return bool(dynamo.is_compile_supported(device_type))


# Deferred module -> what other modules take out of it by `from ... import`.
TAKEN: dict[str, dict[str, Any]] = {
    "captum.attr": {"IntegratedGradients": IntegratedGradients},
    "onnxruntime": {},
    "openvino": {},
    "openvino.torch": {},
    "torch._dynamo.utils": {"is_compile_supported": is_compile_supported},
    "torch_tensorrt": {},
}


@contextlib.contextmanager
def unused_imports_deferred(*kept: str) -> Iterator[None]:
    """Defers the imports of the modules in `TAKEN`, but for `kept`, inside the block.

    Modules that are not installed stay missing, and modules that were imported before stay
    unchanged. After the block an import gets the real module.
    """
    stand_ins = {
        name: make_stand_in(name)
        for name in TAKEN.keys() - kept
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
    stand_in = StandIn(name)
    vars(stand_in).update(TAKEN[name])
    return stand_in


def is_installed(name: str) -> bool:
    """Returns True if the module's package can be found, without importing it."""
    return importlib.util.find_spec(name.partition(".")[0]) is not None
