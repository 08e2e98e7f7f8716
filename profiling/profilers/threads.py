"""Profilers of all threads that work for a request: lines, and samples of stacks."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import thread as pool_module
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from offpath.profiling.profilers.collector import Collector, LineSample, LoadedHandler, Samples
from offpath.profiling.profilers.stages import TORCHSERVE_STAGES

OURS = "offpath.handler."
# Time between two samples.
INTERVAL_S = 0.001
# pyinstrument's page loads fonts from the network. Without them it uses the browser's own.
FONTS = re.compile(r"https://fonts\.googleapis\.com/[^\"']*")
EMPTY_STYLE = "data:text/css,"
# It also puts names into a script as they are, so a name could end the script.
SAMPLES = re.compile(r"(?<=const sessionData = ).*")
# It opens with a tree of calls, and calls the flame graph a timeline.
TREE_FIRST, GRAPH_FIRST = '{viewMode:"call-stack"}', '{viewMode:"timeline"}'


@contextmanager
def watching_threads(watch: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Enters `watch()` here, and on the handler's own threads around what they do for requests.

    A pool's thread is watched during each work item. A thread that the handler starts for a request
    is watched from start to end. Threads that existed before (metrics, log shipping) do not work
    for requests and are left out.
    """
    # Any: mypy forbids assigning to a method.
    item_class: Any = pool_module._WorkItem
    thread_class: Any = threading.Thread
    run_item, run_thread = item_class.run, thread_class.run

    # From Python 3.14 on, `run` takes the pool's context.
    def watch_item(item: Any, *args: Any) -> None:
        with watch():
            run_item(item, *args)

    def watch_thread(thread: threading.Thread) -> None:
        # A pool starts a thread with its first item: the items are watched, not the whole thread.
        if getattr(thread, "_target", None) is pool_module._worker:  # type: ignore[attr-defined]
            run_thread(thread)
            return
        with watch():
            run_thread(thread)

    item_class.run, thread_class.run = watch_item, watch_thread
    try:
        with watch():
            yield
    finally:
        item_class.run, thread_class.run = run_item, run_thread


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


class FlameCollector(Collector):
    """A sampler of stacks, for a flame graph.

    pyinstrument samples the thread that starts it. Each batch, and each piece of work on the
    handler's own threads, gets its own sampler. All samples are joined at the end.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._lock = threading.Lock()
        self._sessions: list[Any] = []

    def watching(self) -> AbstractContextManager[None]:
        return watching_threads(self._sampling)

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        from pyinstrument import Profiler

        profiler = Profiler(INTERVAL_S, async_mode="disabled")
        profiler.start()
        try:
            yield
        finally:
            session = profiler.stop()
            with self._lock:
                self._sessions.append(session)

    def finish(self, shorten: Callable[[str], str], path: Path) -> Samples:
        """Writes one self-contained HTML page."""
        from pyinstrument.processors import aggregate_repeated_calls
        from pyinstrument.renderers import HTMLRenderer

        session = join_sessions(self._sessions)
        session.target_description = session.program = self._title
        renderer = HTMLRenderer()
        # Without this the graph shows one batch after the other instead of their sum.
        renderer.preprocessors = [aggregate_repeated_calls]
        page = FONTS.sub(EMPTY_STYLE, renderer.render(session)).replace(TREE_FIRST, GRAPH_FIRST)
        page = SAMPLES.sub(lambda found: found[0].replace("<", r"\u003c"), page)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
        return []


def join_sessions(sessions: list[Any]) -> Any:
    """Joins all samples in one session; `Session.combine` would copy them for each."""
    first = sessions[0]
    for other in sessions[1:]:
        first.frame_records.extend(other.frame_records)
        first.duration += other.duration
        first.cpu_time += other.cpu_time
        first.sample_count += other.sample_count
    return first
