"""A Python file that makes a model: imported as the worker will, with the modules it imports.

    net.py             its one class, a torch.nn.Module
    net.py:Net         that class; the file may define others
    net.py:make_model  a function without arguments that returns the model

TorchServe wants a file with exactly one class in it (ts/torch_handler/base_handler.py). Where the
user's is none, the archive gets one that asks the user's for the model.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from offpath.archive.model_input import format_error
from offpath.handler.errors import WrongOption

# Modules of the worker itself; an archive's folder comes first on its path.
RESERVED_MODULES = frozenset(
    """ts torch torchvision captum offpath classifier_entry numpy PIL simplejpeg yaml psutil
    packaging aiobotocore aiohttp botocore zstandard""".split()
)
# What Python imports as a module (importlib.machinery.all_suffixes() of any platform).
MODULE_SUFFIXES = (".py", ".pyc", ".so")
WRAPPER_FILE = "offpath_model.py"
WRAPPER = '''"""Written by `offpath archive`: TorchServe wants a file with exactly one class."""

import torch
{imports}


class OffpathModel(torch.nn.Module):
    """Makes the model; no instance of this class is left."""

    def __new__(cls):
        return {call}
'''


@dataclass(frozen=True)
class Definition:
    """What makes a model, and what it needs beside it.

    Attributes:
        make: a new model, with random weights.
        name: of the file that TorchServe imports.
        text: its content, where it is not the user's own.
        files: name in the archive -> file of the user's.
    """

    make: Callable[[], torch.nn.Module]
    name: str
    text: str | None = None
    files: dict[str, Path] = field(default_factory=dict)


def read_definition(path: Path, attribute: str | None) -> Definition:
    """Imports the file and finds what makes the model.

    Args:
        path: the file; exists.
        attribute: a class or a function in it; None for its one class.

    Raises:
        WrongOption: it cannot be imported, or holds no such thing.
    """
    check_shadowing(path)
    if not path.stem.isidentifier():
        # ts/torch_handler/base_handler.py imports what comes before the first dot.
        raise WrongOption(
            f"--model {path.name}: TorchServe cannot import that name; rename the file"
        )
    folder = _Folder(path)
    with folder.importable(path.stem):
        module = _import(path)
    maker = _find_maker(module, path, attribute)

    def make() -> torch.nn.Module:
        with folder.importable(path.stem):
            return _make(maker, path)

    make()  # shows what it imports when it is called
    for name in folder.files:
        check_shadowing(Path(name.partition("/")[0]).with_suffix(".py"))
    if attribute is None:
        return Definition(make, path.name, None, folder.files)
    text = WRAPPER.format(
        imports=f"\nimport {path.stem}", call=f"{path.stem}.{attribute}()"
    )
    return Definition(make, WRAPPER_FILE, text, folder.files)


def check_shadowing(path: Path) -> None:
    """Refuses a file whose module name would hide one that the worker imports."""
    if path.suffix not in MODULE_SUFFIXES:
        return
    name = path.name.partition(".")[0]
    if name in RESERVED_MODULES or name in sys.stdlib_module_names:
        raise WrongOption(
            f"{path.name} would shadow the module {name!r} in the worker (the archive's folder "
            "comes first on its path); rename the file"
        )


class _Folder:
    """The folder of a definition: first on the path while its code runs, as the archive's is.

    Attributes:
        modules: what was imported of it so far, by module name.
    """

    def __init__(self, path: Path) -> None:
        self._folder = path.resolve().parent
        self.modules: dict[str, ModuleType] = {}

    @contextlib.contextmanager
    def importable(self, main: str) -> Iterator[None]:
        """`main`, and what it imports of the folder, are gone from sys.modules afterwards."""
        before = dict(sys.modules)
        # One of that name, of another folder or an earlier build, is not the user's.
        sys.modules.pop(main, None)
        sys.modules.update(self.modules)
        sys.path.insert(0, str(self._folder))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(str(self._folder))
            for name, module in list(sys.modules.items()):
                if before.get(name) is not module and self.find_name(module):
                    self.modules[name] = module
            for name in self.modules:
                sys.modules.pop(name, None)
                if name in before:
                    sys.modules[name] = before[name]

    def find_name(self, module: ModuleType) -> str | None:
        """Its file's name in the folder; None for others, and for packages installed below it."""
        file = getattr(module, "__file__", None)
        if file is None:
            return None
        try:
            inside = Path(file).resolve().relative_to(self._folder)
        except ValueError:
            return None
        # A folder may hold an environment, or our own sources.
        is_installed = {"site-packages", "dist-packages"} & {*inside.parts}
        is_ours = module.__name__.partition(".")[0] == "offpath"
        return None if is_installed or is_ours else inside.as_posix()

    @property
    def files(self) -> dict[str, Path]:
        """Name in the archive -> file, of all that was imported."""
        names = (self.find_name(module) for module in self.modules.values())
        return {name: self._folder / name for name in sorted(filter(None, names))}


def _import(path: Path) -> ModuleType:
    try:
        return importlib.import_module(path.stem)
    except (Exception, SystemExit) as error:
        raise WrongOption(
            f"{path} fails on import: {type(error).__name__}: {format_error(error)}"
        ) from error


def _find_maker(
    module: ModuleType, path: Path, attribute: str | None
) -> Callable[[], Any]:
    classes = {
        name: member
        for name, member in inspect.getmembers(module, inspect.isclass)
        if member.__module__ == module.__name__
    }
    if attribute is None:
        only = next(iter(classes.values()), object)
        if len(classes) == 1 and issubclass(only, torch.nn.Module):
            return only
        raise WrongOption(
            f"{path.name} must define exactly one class, a torch.nn.Module, or say which makes the "
            f"model: --model {path.name}:NAME (a class, or a function without arguments); found: "
            f"{', '.join(classes) or 'none'}"
        )
    maker = getattr(module, attribute, None)
    if not callable(maker):
        own = [
            name
            for name, member in vars(module).items()
            if callable(member) and getattr(member, "__module__", "") == module.__name__
        ]
        raise WrongOption(
            f"{path.name} has no class or function {attribute!r}; it has: "
            f"{', '.join(own) or 'none'}"
        )
    made: Callable[[], Any] = maker
    return made


def _make(maker: Callable[[], Any], path: Path) -> torch.nn.Module:
    name = getattr(maker, "__name__", "the factory")
    try:
        model = maker()
    except Exception as error:
        raise WrongOption(
            f"{name}() in {path.name} fails without arguments: {format_error(error)}"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise WrongOption(
            f"{name}() in {path.name} returned a {type(model).__name__}; expected a "
            "torch.nn.Module"
        )
    return model
