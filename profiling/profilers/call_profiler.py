"""Statistics of calls for `pstats`, of all threads that work for a request.

Up to Python 3.11, each thread has a cProfile. From 3.12 on, cProfile listens to `sys.monitoring`,
which reports every thread's calls to one stack: the calls of two threads get mixed up, and a second
cProfile is refused ("another profiling tool is already active"). There, `sys.setprofile`, which
observes one thread, feeds `StackProfile`. It gives the same figures at five times the cost per
call (4 us instead of 0.8).
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any, Union, cast

# File, line, name.
Function = tuple[str, int, str]
# Calls, primitive calls, own seconds, cumulative seconds.
Figures = tuple[int, int, float, float]
# pstats' format: primitive calls, calls, own and cumulative seconds, then Figures by caller.
Stats = dict[Function, tuple[int, int, float, float, dict[Function, Figures]]]

# Stands for the number of a caller where there is none.
NOBODY = -1


class StackProfile:
    """A profiler that uses `sys.setprofile`.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        # Functions are numbered, because hashing a code object or a name for each call would cost
        # more than all other steps.
        self._numbers: dict[Any, int] = {}
        self._names: dict[Function, int] = {}
        self._depths: list[int] = []
        self._kept: list[CodeType] = []
        # [number, start, seconds of the functions it called], outermost first.
        self._stack: list[list[Any]] = []
        # (number, caller's number) -> [primitive calls, calls, own, cumulative].
        self._edges: dict[tuple[int, int], list[Any]] = {}
        self.stats: Stats = {}

    def enable(self) -> None:
        """Starts profiling the calling thread."""
        sys.setprofile(self._on_event)

    def disable(self) -> None:
        """Stops profiling the calling thread."""
        sys.setprofile(None)
        while self._stack:
            self._leave()

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            number = self._numbers.get(id(code))
            if number is None:
                # Kept alive, so that no other code object gets its id.
                self._kept.append(code)
                number = self._add(id(code), name_code(code))
            self._enter(number)
        elif event == "c_call":
            owner = getattr(argument, "__self__", None)
            # Each call makes a new object for a method, but not for a module's function.
            is_method = owner is not None and not isinstance(owner, ModuleType)
            key = (type(owner), argument.__name__) if is_method else argument
            number = self._numbers.get(key)
            if number is None:
                number = self._add(key, name_builtin(argument))
            self._enter(number)
        elif self._stack:
            # A function that was entered before the profiler started has no entry on the stack.
            self._leave()

    def _add(self, key: Any, function: Function) -> int:
        number = self._names.setdefault(function, len(self._names))
        if number == len(self._depths):
            self._depths.append(0)
        self._numbers[key] = number
        return number

    def _enter(self, number: int) -> None:
        self._depths[number] += 1
        self._stack.append([number, self._clock(), 0.0])

    def _leave(self) -> None:
        number, start, called_s = self._stack.pop()
        whole_s = self._clock() - start
        caller = NOBODY
        if self._stack:
            parent = self._stack[-1]
            caller = parent[0]
            parent[2] += whole_s
        edge = self._edges.get((number, caller))
        if edge is None:
            edge = self._edges[number, caller] = [0, 0, 0.0, 0.0]
        edge[1] += 1
        edge[2] += whole_s - called_s
        self._depths[number] -= 1
        if self._depths[number] == 0:
            # The outermost call of a recursion contains the time of the inner calls.
            edge[0] += 1
            edge[3] += whole_s

    def create_stats(self) -> None:
        """Fills `stats` with all calls so far; `pstats.Stats` calls this method."""
        self.stats = {}
        functions = list(self._names)
        for (number, caller), figures in self._edges.items():
            primitive, calls, own_s, whole_s = figures
            before = self.stats.get(functions[number], (0, 0, 0.0, 0.0, {}))
            callers = before[4]
            if caller != NOBODY:
                callers[functions[caller]] = (calls, primitive, own_s, whole_s)
            self.stats[functions[number]] = (
                before[0] + primitive,
                before[1] + calls,
                before[2] + own_s,
                before[3] + whole_s,
                callers,
            )


# Either profiles the thread that enables it, and `pstats.Stats` reads both.
ThreadProfile = Union[StackProfile, cProfile.Profile]


def name_code(code: CodeType) -> Function:
    """Returns pstats' name for a Python function."""
    return code.co_filename, code.co_firstlineno, code.co_name


def name_builtin(function: Any) -> Function:
    """Returns pstats' name for a function written in C."""
    name = getattr(function, "__name__", repr(function))
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None)
    if module and module != "builtins":
        return "~", 0, f"<built-in method {module}.{name}>"
    if owner is None or isinstance(owner, ModuleType):
        return "~", 0, f"<built-in method {module or 'builtins'}.{name}>"
    return "~", 0, f"<method '{name}' of '{type(owner).__name__}' objects>"


class CallProfiler:
    """One profile for each thread that handles requests, merged at the end.

    Args:
        make_profile: makes a thread's profile; by default, the kind that fits this Python.
    """

    def __init__(self, make_profile: Callable[[], ThreadProfile] | None = None) -> None:
        modern = sys.version_info >= (3, 12)
        self._make = make_profile or (StackProfile if modern else cProfile.Profile)
        self._lock = threading.Lock()
        self._profiles: dict[int, ThreadProfile] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Profiles the calling thread. Further blocks on the same thread add to its profile."""
        thread = threading.get_ident()
        with self._lock:
            profile = self._profiles.get(thread)
            if profile is None:
                profile = self._profiles[thread] = self._make()
        profile.enable()
        try:
            yield
        finally:
            profile.disable()

    def merge(self) -> pstats.Stats:
        """Returns the statistics of all threads together."""
        return pstats.Stats(*cast(Any, self._profiles.values()))


def read_stats(profile: pstats.Stats) -> Stats:
    """Returns the figures of a profile, which typeshed does not declare."""
    return cast(Stats, vars(profile)["stats"])
