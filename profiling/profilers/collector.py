"""A loaded handler, what a collector finds while it handles batches, and the collector of stages.

There are no statistics here: a sample is one batch, one function or one source line.

Stages are disjoint, and the rest of a batch is `other`. Our own handler measures its stages itself.
Every other handler gets a clock around `preprocess`, `inference` and `postprocess`, and around each
function that its class and module define. A stage's time excludes the stages that it calls.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any, Union

Seconds = Mapping[str, float]
FOREIGN_PACKAGES = ("ts", "torch", "torchvision", "builtins", "abc")
TORCHSERVE_STAGES = ("preprocess", "inference", "postprocess")
NOT_STAGES = ("handle", "initialize")
# Names in reports for two methods of the naive handler.
STAGE_NAMES = {
    ("NaiveClassifier", "_read_config"): "config",
    ("NaiveClassifier", "_put"): "s3",
}


@dataclass
class LoadedHandler:
    """A handler that is ready for requests.

    Attributes:
        entry: the function that a server calls: `classify(requests)` of our own archive, else
            `entry(rows, context)`.
        context: TorchServe's context of the handler; None for our own archive.
    """

    entry: Callable[..., Any]
    context: Any = None

    @property
    def instance(self) -> Any:
        """The object that has `entry` as a method; None if `entry` is a function."""
        return getattr(self.entry, "__self__", None)

    @property
    def is_offpath(self) -> bool:
        """Tells whether the handler is ours, or of a class that extends ours."""
        return any(
            (cls.__module__, cls.__name__) == ("offpath.handler.classifier", "OffpathClassifier")
            for cls in type(self.instance).__mro__
        )

    @property
    def own_classes(self) -> list[type]:
        """The handler's class and its bases, without those of TorchServe and torch."""
        classes = () if self.instance is None else type(self.instance).__mro__
        return [cls for cls in classes if cls.__module__.split(".")[0] not in FOREIGN_PACKAGES]

    @property
    def own_modules(self) -> list[str]:
        """The names of the modules that define `own_classes`, or the function."""
        if self.instance is None:
            return [self.entry.__module__]
        return list(dict.fromkeys(cls.__module__ for cls in self.own_classes))


@dataclass(frozen=True)
class BatchSample:
    """One batch.

    Attributes:
        total_s: duration of the call of `handle`.
        stages_s: seconds by stage, in the order of the path. The rest of the total is `other`.
    """

    size: int
    total_s: float
    stages_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FunctionSample:
    """One function over all batches.

    Attributes:
        kind: the top package, see `find_package`.
        own_s: seconds without called functions. The own times of all functions add up to the total.
    """

    name: str
    file: str
    line: int
    kind: str
    calls: int
    own_s: float
    cumulative_s: float


@dataclass(frozen=True)
class LineSample:
    """One source line of a function that line_profiler watched."""

    function: str
    file: str
    line: int
    hits: int
    time_s: float
    source: str


Samples = Union[list[FunctionSample], list[LineSample]]


class Collector:
    """An observer of batches. This base class collects nothing and serves for the warm-up."""

    def watching(self) -> AbstractContextManager[None]:
        """Returns a context that is entered around each call of `handle`."""
        return nullcontext()

    def take_batch(self) -> Seconds:
        """Returns the last batch's seconds by stage; only the stages' own collector has any."""
        return {}

    def finish(self, shorten: Callable[[str], str], path: Path) -> Samples:
        """Returns the samples, and writes `path` if the collector makes a file.

        Args:
            shorten: makes a source file's path fit for a report.
        """
        return []


def collect_stages(handler: LoadedHandler) -> Collector:
    """Returns the collector for a handler: its own timer if it is ours, else clocks around it."""
    if handler.is_offpath:
        return OwnStages(handler.instance)
    collector = ClockedStages()
    clock_stages(handler, collector)
    return collector


class OwnStages(Collector):
    """The stages that our classifier has measured itself."""

    def __init__(self, instance: Any) -> None:
        self._classifier = instance

    def take_batch(self) -> Seconds:
        seconds = self._classifier.timings.seconds
        return {stage.value: value for stage, value in seconds.items()}


class ClockedStages(Collector):
    """A clock for nested stages. It counts on the thread that made it."""

    def __init__(self) -> None:
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
        now = time.perf_counter()
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
