"""Seconds per source line of a handler's stages, measured by line_profiler."""

from __future__ import annotations

import importlib
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from offpath.handler.errors import WrongOption
from offpath.profiling.profilers.handler_driver import Collector, LoadedHandler
from offpath.profiling.profilers.samples import LINES, LineSample
from offpath.profiling.profilers.stages import (
    TORCHSERVE_STAGES,
    is_offpath,
    own_classes,
)
from offpath.profiling.profilers.worker_threads import watching_threads

OURS = "offpath.handler."


class LineCollector(Collector):
    """A line profiler of some functions."""

    def __init__(self, functions: Sequence[FunctionType]) -> None:
        from line_profiler import LineProfiler

        self._profiler: Any = LineProfiler()
        self._names: dict[tuple[str, int], str] = {}
        for function in functions:
            self._profiler.add_function(function)
            code = function.__code__
            place = code.co_filename, code.co_firstlineno
            self._names[place] = function.__qualname__

    @contextmanager
    def watching(self) -> Iterator[None]:
        with watching_threads(self._watching_thread), self._watching_thread():
            yield

    @contextmanager
    def _watching_thread(self) -> Iterator[None]:
        # line_profiler listens to the thread that enables it.
        self._profiler.enable()
        try:
            yield
        finally:
            self._profiler.disable()

    def finish(
        self, shorten: Callable[[str], str], path: Path | None
    ) -> dict[str, list[dict[str, Any]]]:
        """Returns one sample per line that ran, in the order of the files."""
        stats = self._profiler.get_stats()
        samples = [
            LineSample(
                function=self._names.get((file, first), name),
                file=shorten(file),
                line=line,
                hits=hits,
                time_s=time * stats.unit,
                source=linecache.getline(file, line).rstrip(),
            )
            for (file, first, name), timings in sorted(stats.timings.items())
            for line, hits, time in timings
        ]
        return {LINES: [asdict(sample) for sample in samples]}


def choose_functions(handler: LoadedHandler, named: Sequence[str]) -> list[FunctionType]:
    """Returns the functions to watch: the named ones, else the handler's stages.

    Names are `module:qualified.name`. Raises WrongOption if one leads to no Python function.
    """
    if named:
        return [find_function(name) for name in named]
    functions = list_own_functions(handler)
    if is_offpath(handler.instance):
        # The modules that the worker loaded. Functions that run for no request show no lines.
        loaded = [name for name in sys.modules if name.startswith(OURS)]
        for name in sorted(loaded):
            functions += list_module_functions(sys.modules[name], with_classes=True)
    return list(dict.fromkeys(functions))


def find_function(name: str) -> FunctionType:
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise WrongOption(
            f"no function {name!r}: {error}; expected module:qualified.name, for instance"
            " offpath.handler.image.decode:decode_image"
        ) from error
    function = unwrap(found)
    if function is None:
        raise WrongOption(f"{name!r} is {found!r}; expected a Python function")
    return function


def unwrap(value: object) -> FunctionType | None:
    """Returns the function inside staticmethods, methods and decorators, or None."""
    value = inspect.unwrap(getattr(value, "__func__", value))  # type: ignore[arg-type]
    if not isinstance(value, FunctionType):
        return None
    # ts/handler_utils/timer.py: `timed` hides the function in its closure, without `wraps`.
    if value.__name__ == "wrap_func" and value.__closure__:
        for cell in value.__closure__:
            if isinstance(cell.cell_contents, FunctionType):
                return cell.cell_contents
    return value


def list_own_functions(handler: LoadedHandler) -> list[FunctionType]:
    """Returns the functions of the handler's class and module, and the stages that it inherits."""
    functions = []
    if handler.instance is not None:
        cls = type(handler.instance)
        for base in own_classes(cls):
            functions += list_class_functions(base)
        inherited = (unwrap(getattr(cls, name, None)) for name in TORCHSERVE_STAGES)
        functions += [function for function in inherited if function is not None]
    if handler.module.__name__.split(".")[0] != "ts":
        functions += list_module_functions(handler.module)
    return functions


def list_module_functions(module: ModuleType, with_classes: bool = False) -> list[FunctionType]:
    """Returns the functions that a module defines, and with `with_classes` its methods."""
    functions = []
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            functions += list_class_functions(value) if with_classes else []
        elif (function := unwrap(value)) is not None:
            functions.append(function)
    return functions


def list_class_functions(cls: type) -> list[FunctionType]:
    """Returns a class's own methods, without those that run before the first request."""
    found = (unwrap(value) for value in vars(cls).values())
    return [function for function in found if function and function.__name__ != "initialize"]
