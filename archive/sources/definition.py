"""Imports the Python file that makes a model, as the worker will, and notes what it imports.

    net.py             its one class, a torch.nn.Module
    net.py:Net         that class; the file may define others
    net.py:make_model  a function without arguments that returns the model

TorchServe wants a file with exactly one class (ts/torch_handler/base_handler.py). If the user's
file has another form, the archive gets such a file too, which asks the user's file for the model.
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

import offpath.handler.process.light_torchvision  # noqa: F401  # most definitions import it
from offpath.archive.model_probe import format_error
from offpath.archive.no_network import network_refused
from offpath.errors import WrongOption
from offpath.handler.model.weights import working_folder

# Modules that the worker imports. The archive's folder comes before them on its path.
RESERVED_MODULES = frozenset(
    """ts torch torchvision captum offpath classifier_entry numpy PIL simplejpeg yaml psutil
    packaging aiobotocore aiohttp botocore zstandard""".split()
)
# Suffixes of files that Python imports (importlib.machinery.all_suffixes() of any platform).
MODULE_SUFFIXES = (".py", ".pyc", ".so")
WRAPPER_FILE = "offpath_model.py"
WRAPPER = '''"""Written by `offpath archive`: TorchServe wants a file with exactly one class."""

import torch
{imports}


class OffpathModel(torch.nn.Module):
    """Returns the user's model; this class has no instance of its own."""

    def __new__(cls):
        return {call}
'''


@dataclass(frozen=True)
class Definition:
    """The code that makes a model, with the files that it imports.

    Attributes:
        make: returns a new model with random weights.
        name: name of the file that TorchServe imports.
        text: content of that file, if it is not the user's.
        files: name in the archive -> the user's file.
    """

    make: Callable[[], torch.nn.Module]
    name: str
    text: str | None = None
    files: dict[str, Path] = field(default_factory=dict)


def read_definition(path: Path, attribute: str | None) -> Definition:
    """Imports the file and finds what makes the model.

    Args:
        attribute: a class or a function in it; None for its only class.

    Raises:
        WrongOption: the file cannot be imported, or has no such class or function.
    """
    folder = DefinitionFolder(path)
    module = folder.import_file(path)
    maker = _find_maker(module, path, attribute)

    def make() -> torch.nn.Module:
        with folder.importable(path.stem):
            return _make(maker, path)

    make()  # the call itself may import more files
    if attribute is None:
        return Definition(make, path.name, None, folder.files)
    text = WRAPPER.format(imports=f"\nimport {path.stem}", call=f"{path.stem}.{attribute}()")
    return Definition(make, WRAPPER_FILE, text, folder.files)


def write_definition(package: str, call: str) -> Definition:
    """Writes the definition of a model that a package makes.

    Args:
        call: an expression that makes it. Nobody else's text may be in it, because it is run here
            as in the worker.
    """
    text = WRAPPER.format(imports=f"import {package}", call=call)

    def make() -> torch.nn.Module:
        names: dict[str, Any] = {}
        exec(text, names)
        model: torch.nn.Module = names["OffpathModel"]()
        return model

    return Definition(make, WRAPPER_FILE, text)


def check_shadowing(path: Path) -> None:
    """Raises WrongOption for a file whose name would hide a module that the worker imports."""
    if path.suffix not in MODULE_SUFFIXES:
        return
    name = path.name.partition(".")[0]
    if name in RESERVED_MODULES or name in sys.stdlib_module_names:
        raise WrongOption(
            f"{path.name} would shadow the module {name!r} in the worker (the archive's folder "
            "comes first on the import path); rename the file"
        )


class DefinitionFolder:
    """The folder of a user's file; while its code runs, it is where imports and files are sought.

    Attributes:
        modules: modules imported from the folder so far, by name.
    """

    def __init__(self, path: Path) -> None:
        self._folder = path.resolve().parent
        self.modules: dict[str, ModuleType] = {}

    def import_file(self, path: Path) -> ModuleType:
        """Imports a file of the folder.

        Raises:
            WrongOption: its name cannot be imported in a worker, or its code fails.
        """
        check_shadowing(path)
        if not path.stem.isidentifier():
            # ts/torch_handler/base_handler.py imports the part before the first dot.
            raise WrongOption(
                f"{path.name}: Python cannot import a module of that name; rename the file"
            )
        with self.importable(path.stem):
            try:
                return importlib.import_module(path.stem)
            except (Exception, SystemExit) as error:
                raise WrongOption(
                    f"{path} fails on import: {type(error).__name__}: {format_error(error)}"
                ) from error

    @contextlib.contextmanager
    def importable(self, main: str) -> Iterator[None]:
        """Makes `main` importable; removes it and its neighbours from sys.modules afterwards."""
        before = dict(sys.modules)
        # A module of that name may be left from another folder or an earlier build.
        sys.modules.pop(main, None)
        sys.modules.update(self.modules)
        sys.path.insert(0, str(self._folder))
        importlib.invalidate_caches()
        try:
            with working_folder(self._folder), network_refused():
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
        """Returns the module's path in the folder; None if it lies elsewhere or was installed."""
        file = getattr(module, "__file__", None)
        if file is None:
            return None
        try:
            inside = Path(file).resolve().relative_to(self._folder)
        except ValueError:
            return None
        # The folder may hold a virtual environment, or offpath's own sources.
        is_installed = {"site-packages", "dist-packages"} & {*inside.parts}
        is_ours = module.__name__.partition(".")[0] == "offpath"
        return None if is_installed or is_ours else inside.as_posix()

    @property
    def files(self) -> dict[str, Path]:
        names = (self.find_name(module) for module in self.modules.values())
        return {name: self._folder / name for name in sorted(filter(None, names))}


def _find_maker(module: ModuleType, path: Path, attribute: str | None) -> Callable[[], Any]:
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
            f"{path.name} must define exactly one class, a torch.nn.Module; or name what makes the "
            f"model: --model {path.name}:NAME (a class, or a function without arguments); classes "
            f"found: {', '.join(classes) or 'none'}"
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
