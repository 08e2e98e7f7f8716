"""Profilers of functions, of lines, and of the stacks of all threads that work for a request.

cProfile follows one thread up to Python 3.11, and mixes all threads up from 3.12 on. So what a
handler submits to a thread pool runs on the thread that calls `handle` while cProfile runs.
"""

from __future__ import annotations

import cProfile
import inspect
import linecache
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import thread as pool_module
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from offpath.profiling.profilers.collector import (
    TORCHSERVE_STAGES,
    Collector,
    FunctionSample,
    LineSample,
    LoadedHandler,
    Samples,
    collect_stages,
)

# File, line, name.
Function = tuple[str, int, str]
# cProfile's format: primitive calls, calls, own seconds, cumulative seconds, figures by caller.
Stats = Mapping[Function, tuple[int, int, float, float, Any]]

# Functions below these shares of the total are added up in one row per package.
SMALL_OWN, SMALL_CUMULATIVE = 2e-4, 5e-3
REST = "(smaller functions)"
# The standard library and built-in functions.
PYTHON = "Python"
# A function written in C has its module in its name, or in that of its type.
IN_C = re.compile(r"<built-in method (?P<function>\w+)\.| of '(?P<type>\w+)\.")
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


class CallCollector(Collector):
    """A cProfile of `handle`."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile()

    @contextmanager
    def watching(self) -> Iterator[None]:
        with working_on_this_thread():
            self._profile.enable()
            try:
                yield
            finally:
                self._profile.disable()

    def finish(self, shorten: Callable[[str], str], path: Path) -> list[FunctionSample]:
        """Returns all functions. Writes the .prof file for snakeviz or pstats."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._profile.dump_stats(path)
        return make_samples(self._profile.stats, shorten)


@contextmanager
def working_on_this_thread() -> Iterator[None]:
    """Runs at once what this thread submits to thread pools, while the block runs."""
    # Any: mypy forbids assigning to a method.
    pool_class: Any = ThreadPoolExecutor
    submit, thread = pool_class.submit, threading.get_ident()

    def run(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kw: Any) -> Any:
        if threading.get_ident() != thread:
            return submit(pool, work, *args, **kw)
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **kw))
        except BaseException as error:
            done.set_exception(error)
        return done

    pool_class.submit = run
    try:
        yield
    finally:
        pool_class.submit = submit


def make_samples(stats: Stats, shorten: Callable[[str], str]) -> list[FunctionSample]:
    """Makes samples of pstats' figures. Small functions become one row per package."""
    whole_s = sum(figures[2] for figures in stats.values())
    kept: list[FunctionSample] = []
    rest: dict[str, tuple[int, float]] = {}
    for (path, line, name), (_, calls, own_s, cumulative_s, _) in stats.items():
        if path == __file__ or "_lsprof" in name:
            continue  # the profiler itself, which runs inside the watched time
        file = "" if path == "~" else shorten(path)
        kind = find_package(file, name)
        if own_s < SMALL_OWN * whole_s and cumulative_s < SMALL_CUMULATIVE * whole_s:
            before = rest.get(kind, (0, 0.0))
            rest[kind] = (before[0] + calls, before[1] + own_s)
            continue
        kept.append(FunctionSample(name, file, line, kind, calls, own_s, cumulative_s))
    kept.sort(key=lambda sample: -sample.cumulative_s)
    return kept + [
        FunctionSample(REST, "", 0, kind, calls, own_s, own_s)
        for kind, (calls, own_s) in rest.items()
    ]


def find_package(file: str, name: str) -> str:
    """Returns the top package of a function, or PYTHON.

    Args:
        file: shortened, as in reports; empty for a function written in C.
    """
    in_c = IN_C.search(name)
    if file:
        package = file.split("/")[0].removesuffix(".py")
    else:
        package = "" if in_c is None else in_c["function"] or in_c["type"]
    is_python = package in ("", *sys.stdlib_module_names) or package.startswith("<")
    return PYTHON if is_python else package


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


@dataclass(frozen=True)
class Profiler:
    """A subcommand of `offpath profile` that runs handlers.

    Attributes:
        title: of its report.
        make: makes the collector for a loaded handler and its name.
        suffix: end of the name of the file that it writes for each handler; empty for none.
    """

    title: str
    make: Callable[[LoadedHandler, str], Collector]
    suffix: str = ""


PROFILERS = {
    "stages": Profiler("Where a batch's time goes, by stage", lambda one, _: collect_stages(one)),
    "cprofile": Profiler(
        "Where the time goes, by function", lambda *_: CallCollector(), suffix=".prof"
    ),
    "lines": Profiler(
        "Where the time goes, by line", lambda one, _: LineCollector(choose_functions(one))
    ),
    "flame": Profiler(
        "Where the time goes, by call stack",
        lambda _, name: FlameCollector(f"{name}: handle"),
        suffix="-flame.html",
    ),
}
