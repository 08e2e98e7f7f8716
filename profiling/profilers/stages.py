"""Seconds by stage for any handler. Stages are disjoint, and the rest of a batch is `other`.

Our own handler measures its stages itself. Every other handler gets a clock around `preprocess`,
`inference` and `postprocess`, and around each function that its class and module define. A stage's
time excludes the stages that it calls, so all stages add up.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from offpath.profiling.profilers.handler_driver import (
    Collector,
    Driver,
    LoadedHandler,
    Seconds,
)

TORCHSERVE_STAGES = ("preprocess", "inference", "postprocess")
NOT_STAGES = ("handle", "initialize")
# Names in reports for two methods of the naive handler.
STAGE_NAMES = {
    ("NaiveClassifier", "_read_config"): "config",
    ("NaiveClassifier", "_put"): "s3",
}
FOREIGN_PACKAGES = ("ts", "torch", "torchvision", "builtins", "abc")
TRACED_BATCHES = 3

Enter = Callable[[str], AbstractContextManager[object]]


class StageCollector(Collector):
    @abstractmethod
    def marked_by(self, enter_range: Enter) -> AbstractContextManager[None]:
        """Returns a context in which each stage also enters `enter_range(stage)`."""


def collect_stages(handler: LoadedHandler) -> StageCollector:
    """Returns the collector for a handler: its own timer if it is ours, else clocks around it."""
    if is_offpath(handler.instance):
        return OwnStages(handler.instance)
    collector = ClockedStages()
    clock_stages(handler, collector)
    return collector


def is_offpath(instance: object) -> bool:
    """Tells whether an object is our handler, or an instance of a class that extends it."""
    return any(
        (cls.__module__, cls.__name__) == ("offpath.handler.classifier", "OffpathClassifier")
        for cls in type(instance).__mro__
    )


class ClockedStages(StageCollector):
    """A clock for nested stages. It counts on the thread that made it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._running: list[str] = []
        self._since = 0.0
        self._seconds: Seconds = {}
        self._enter_range: Enter = nullcontext

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the block's time to `name`, without the time of stages inside it.

        Blocks on other threads are not counted: the stage that waits for them contains their time.
        """
        if threading.get_ident() != self._thread:
            yield
            return
        with self._enter_range(name):
            self._begin(name)
            try:
                yield
            finally:
                self._end()

    def _begin(self, name: str) -> None:
        self._seconds.setdefault(name, 0.0)
        now = self._clock()
        if self._running:
            self._seconds[self._running[-1]] += now - self._since
        self._running.append(name)
        self._since = now

    def _end(self) -> None:
        now = self._clock()
        self._seconds[self._running.pop()] += now - self._since
        self._since = now

    def take_batch(self) -> tuple[Seconds, Seconds]:
        """Returns the seconds since the last call, in the order in which stages began."""
        taken, self._seconds = self._seconds, {}
        return taken, {}

    @contextmanager
    def marked_by(self, enter_range: Enter) -> Iterator[None]:
        self._enter_range = enter_range
        try:
            yield
        finally:
            self._enter_range = nullcontext


class OwnStages(StageCollector):
    """The times of our handler's StageTimer, taken where the handler passes them to its metrics."""

    def __init__(self, instance: Any) -> None:
        from offpath.handler import stages

        self._stage = stages.Stage
        # Any: mypy forbids assigning to a method.
        self._timer_class: Any = stages.StageTimer
        self._host_s: Seconds = {}
        self._device_s: Seconds = {}
        metrics = instance._metrics
        metrics.count_batch = self._tapped(metrics.count_batch)
        self._watch_device()

    def take_batch(self) -> tuple[Seconds, Seconds]:
        taken = self._host_s, self._device_s
        self._host_s, self._device_s = {}, {}
        return taken

    def _tapped(self, count_batch: Callable[..., None]) -> Callable[..., None]:
        def count(timings: Any, size: int, errors: Sequence[str]) -> None:
            self._host_s = {stage.value: seconds for stage, seconds in timings.seconds.items()}
            count_batch(timings, size, errors)

        return count

    def _watch_device(self) -> None:
        """Keeps the times of CUDA events, which the engine reports as shares with TRANSFER."""
        shared, transfer = self._timer_class.shared, self._stage.TRANSFER

        @contextmanager
        def keep_shares(timer: Any, shares: Any) -> Iterator[None]:
            with shared(timer, shares):
                yield
            if transfer in shares:
                self._device_s = {stage.value: ms / 1e3 for stage, ms in shares.items()}

        self._timer_class.shared = keep_shares

    @contextmanager
    def marked_by(self, enter_range: Enter) -> Iterator[None]:
        """Stages that share a block make one range."""
        timer_class = self._timer_class
        stage, shared = timer_class.stage, timer_class.shared

        @contextmanager
        def mark_stage(timer: Any, name: Any) -> Iterator[None]:
            with enter_range(name.value), stage(timer, name):
                yield

        @contextmanager
        def mark_shared(timer: Any, shares: Any) -> Iterator[None]:
            names = "+".join(stage.value for stage in shares) or "transfer+inference"
            with enter_range(names), shared(timer, shares):
                yield

        timer_class.stage, timer_class.shared = mark_stage, mark_shared
        try:
            yield
        finally:
            timer_class.stage, timer_class.shared = stage, shared


def clock_stages(handler: LoadedHandler, clock: ClockedStages) -> None:
    """Puts a clock around the functions that are the handler's stages.

    Class and module are changed in place: the handler has the process to itself. Generators and
    coroutines are left alone, because calling them does not run them.
    """
    if handler.instance is not None:
        _clock_class(type(handler.instance), clock)
    _clock_module(handler.module, clock)


def own_classes(cls: type) -> list[type]:
    """Returns the class and those of its bases that the user wrote."""
    return [base for base in cls.__mro__ if base.__module__.split(".")[0] not in FOREIGN_PACKAGES]


def _clock_class(cls: type, clock: ClockedStages) -> None:
    for name in TORCHSERVE_STAGES:
        inherited = inspect.getattr_static(cls, name, None)
        is_own = any(name in vars(base) for base in own_classes(cls))
        if not is_own and isinstance(inherited, FunctionType):
            setattr(cls, name, clocked(inherited, clock, name))
    for base in own_classes(cls):
        for name, value in list(vars(base).items()):
            stage = STAGE_NAMES.get((base.__name__, name), name)
            if not is_stage(name, getattr(value, "__func__", value)):
                continue
            if isinstance(value, staticmethod):
                setattr(base, name, staticmethod(clocked(value.__func__, clock, stage)))
            elif isinstance(value, FunctionType):
                setattr(base, name, clocked(value, clock, stage))


def _clock_module(module: ModuleType, clock: ClockedStages) -> None:
    if module.__name__.split(".")[0] in FOREIGN_PACKAGES:
        return
    for name, value in list(vars(module).items()):
        is_own = getattr(value, "__module__", None) == module.__name__
        if is_own and isinstance(value, FunctionType) and is_stage(name, value):
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


def save_trace(driver: Driver, collector: StageCollector, path: Path) -> None:
    """Saves a torch.profiler trace of a few batches, with a range for each stage.

    Perfetto shows the trace. The profiler slows the batches down.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as trace, collector.marked_by(record_function):
        for _ in driver.run(TRACED_BATCHES, collector):
            pass
    path.parent.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(path))
