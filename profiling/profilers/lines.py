"""Seconds per source line of a handler's stages, measured by line_profiler."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from offpath.profiling.profilers.collector import (
    Collector,
    LineSample,
    LoadedHandler,
    watching_threads,
)
from offpath.profiling.profilers.stages import TORCHSERVE_STAGES

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
            self._names[code.co_filename, code.co_firstlineno] = function.__qualname__

    def watching(self) -> AbstractContextManager[None]:
        return watching_threads(self._watching_thread)

    @contextmanager
    def _watching_thread(self) -> Iterator[None]:
        # line_profiler listens to the thread that enables it.
        self._profiler.enable()
        try:
            yield
        finally:
            self._profiler.disable()

    def finish(self, shorten: Callable[[str], str], path: Path) -> list[LineSample]:
        """Returns one sample per line that ran, in the order of the files."""
        stats = self._profiler.get_stats()
        return [
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


def choose_functions(handler: LoadedHandler) -> list[FunctionType]:
    """Returns the functions to watch: the handler's stages."""
    functions = [f for cls in handler.own_classes for f in list_methods(cls)]
    stages = (unwrap(getattr(handler.instance, name, None)) for name in TORCHSERVE_STAGES)
    functions += [function for function in stages if function is not None]
    for name in handler.own_modules:
        functions += list_functions(sys.modules[name])
    if handler.is_offpath:
        # The modules that the worker loaded. Functions that run for no request show no lines.
        for name in sorted(name for name in sys.modules if name.startswith(OURS)):
            functions += list_functions(sys.modules[name], with_methods=True)
    return list(dict.fromkeys(functions))


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


def list_functions(module: ModuleType, with_methods: bool = False) -> list[FunctionType]:
    """Returns the functions that a module defines, and its classes' methods."""
    functions = []
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            functions += list_methods(value) if with_methods else []
        elif (function := unwrap(value)) is not None:
            functions.append(function)
    return functions


def list_methods(cls: type) -> list[FunctionType]:
    """Returns a class's own methods, without those that run before the first request."""
    found = (unwrap(value) for value in vars(cls).values())
    return [function for function in found if function and function.__name__ != "initialize"]
