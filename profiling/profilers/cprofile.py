"""Own and cumulative time of each function that a handler's batches call, and its package.

cProfile follows one thread up to Python 3.11, and mixes all threads up from 3.12 on. So what a
handler submits to a thread pool runs on the thread that calls `handle` while it is profiled.
"""

from __future__ import annotations

import cProfile
import pstats
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from offpath.profiling.profilers.collector import Collector, FunctionSample

# File, line, name.
Function = tuple[str, int, str]
# pstats' format: primitive calls, calls, own seconds, cumulative seconds, figures by caller.
Stats = dict[Function, tuple[int, int, float, float, Any]]

# Functions below these shares of the total are added up in one row per package.
SMALL_OWN, SMALL_CUMULATIVE = 2e-4, 5e-3
REST = "(smaller functions)"
# The standard library and built-in functions.
PYTHON = "Python"
# A function written in C has its module in its name, or in that of its type.
IN_C = re.compile(r"<built-in method (?P<function>\w+)\.| of '(?P<type>\w+)\.")


class CallCollector(Collector):
    """A cProfile of `handle`."""

    def __init__(self, profile: cProfile.Profile | None = None) -> None:
        self._profile = profile or cProfile.Profile()

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
        profile = pstats.Stats(self._profile)
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.dump_stats(path)
        # typeshed does not declare it.
        return make_samples(cast(Stats, vars(profile)["stats"]), shorten)


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
