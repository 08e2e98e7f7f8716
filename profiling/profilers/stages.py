"""Seconds by stage for any handler. Stages are disjoint, and the rest of a batch is `other`.

Our own handler measures its stages itself. Every other handler gets a clock around `preprocess`,
`inference` and `postprocess`, and around each function that its class and module define. A stage's
time excludes the stages that it calls, so all stages add up.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from offpath.profiling.profilers.collector import Collector, LoadedHandler, Seconds

TORCHSERVE_STAGES = ("preprocess", "inference", "postprocess")
NOT_STAGES = ("handle", "initialize")
# Names in reports for two methods of the naive handler.
STAGE_NAMES = {
    ("NaiveClassifier", "_read_config"): "config",
    ("NaiveClassifier", "_put"): "s3",
}


def collect_stages(handler: LoadedHandler) -> Collector:
    """Returns the collector for a handler: its own timer if it is ours, else clocks around it."""
    if handler.is_offpath:
        return OwnStages(handler.instance)
    collector = ClockedStages()
    clock_stages(handler, collector)
    return collector


class OwnStages(Collector):
    """The times of our handler's StageTimer, taken where the handler passes them to its metrics."""

    def __init__(self, instance: Any) -> None:
        self._seconds: Seconds = {}
        metrics = instance._metrics
        count_batch = metrics.count_batch

        def count(timings: Any, size: int, errors: Sequence[str]) -> None:
            self._seconds = {stage.value: seconds for stage, seconds in timings.seconds.items()}
            count_batch(timings, size, errors)

        metrics.count_batch = count

    def take_batch(self) -> Seconds:
        taken, self._seconds = self._seconds, {}
        return taken


class ClockedStages(Collector):
    """A clock for nested stages. It counts on the thread that made it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._running: list[str] = []
        self._since = 0.0
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the block's time to `name`, without the time of stages inside it.

        Blocks on other threads are not counted: the stage that waits for them contains their time.
        """
        if threading.get_ident() != self._thread:
            yield
            return
        self._seconds.setdefault(name, 0.0)
        self._count_time()
        self._running.append(name)
        try:
            yield
        finally:
            self._count_time()
            self._running.pop()

    def _count_time(self) -> None:
        """Gives the time since the last call to the innermost stage."""
        now = self._clock()
        if self._running:
            self._seconds[self._running[-1]] += now - self._since
        self._since = now

    def take_batch(self) -> Seconds:
        """Returns the seconds since the last call, in the order in which stages began."""
        taken, self._seconds = self._seconds, {}
        return taken


def clock_stages(handler: LoadedHandler, clock: ClockedStages) -> None:
    """Puts a clock around the functions that are the handler's stages.

    Class and module are changed in place: the handler has the process to itself. Generators and
    coroutines are left alone, because calling them does not run them.
    """
    if handler.instance is not None:
        cls = type(handler.instance)
        for name in TORCHSERVE_STAGES:
            inherited = inspect.getattr_static(cls, name, None)
            is_own = any(name in vars(base) for base in handler.own_classes)
            if not is_own and isinstance(inherited, FunctionType):
                setattr(cls, name, clocked(inherited, clock, name))
    for base in handler.own_classes:
        for name, value in list(vars(base).items()):
            stage = STAGE_NAMES.get((base.__name__, name), name)
            function = getattr(value, "__func__", value)
            if is_stage(name, function) and isinstance(value, (FunctionType, staticmethod)):
                run = clocked(function, clock, stage)
                is_static = isinstance(value, staticmethod)
                setattr(base, name, staticmethod(run) if is_static else run)
    for module in (sys.modules[name] for name in handler.own_modules):
        for name, value in list(vars(module).items()):
            if getattr(value, "__module__", None) == module.__name__ and is_stage(name, value):
                setattr(module, name, clocked(value, clock, name))


def is_stage(name: str, function: object) -> bool:
    """Tells whether a function can be timed and is a stage, not a frame around stages."""
    if not isinstance(function, FunctionType) or name in NOT_STAGES:
        return False
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return False
    return not name.startswith("__") and not hasattr(function, "__wrapped_stage__")


def clocked(function: Callable[..., Any], clock: ClockedStages, stage: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def run_stage(*args: Any, **kwargs: Any) -> Any:
        with clock.stage(stage):
            return function(*args, **kwargs)

    run_stage.__wrapped_stage__ = function  # type: ignore[attr-defined]
    return run_stage
