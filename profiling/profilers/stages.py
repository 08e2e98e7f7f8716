"""Seconds by stage of any handler's batches; stages are disjoint, what they leave is `other`.

Our own handler times its stages itself and is asked for them. Every other one gets a clock around
`preprocess`, `inference` and `postprocess`, and around each function that its own class and module
define: a stage's time is its own, without the stages it called, so that all of them add up.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType, ModuleType
from typing import Any

from offpath.profiling.profilers.drive import Collector, Seconds
from offpath.profiling.profilers.loaded_handler import LoadedHandler

TORCHSERVE_STAGES = ("preprocess", "inference", "postprocess")
NOT_STAGES = ("handle", "initialize")
# Methods of the naive handler by what they stand for.
STAGE_NAMES = {
    ("NaiveClassifier", "_read_config"): "config",
    ("NaiveClassifier", "_put"): "s3",
}
FOREIGN_PACKAGES = ("ts", "torch", "torchvision", "builtins", "abc")

Enter = Callable[[str], AbstractContextManager[object]]


def no_range(name: str) -> AbstractContextManager[object]:
    """Nobody else wants to know of the stages."""
    return nullcontext()


class StageClock:
    """Adds up the own time of nested stages on the thread that made it.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._running: list[str] = []
        self._since = 0.0
        self.seconds: dict[str, float] = {}
        # Entered with each stage: a profiler that wants to mark them.
        self.enter_range: Enter = no_range

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the block's time to `name`, less the time of stages inside it.

        Other threads' blocks are not counted: their time is inside the stage that waits for them.
        """
        if threading.get_ident() != self._thread:
            yield
            return
        with self.enter_range(name):
            self._begin(name)
            try:
                yield
            finally:
                self._end()

    def _begin(self, name: str) -> None:
        self.seconds.setdefault(name, 0.0)
        now = self._clock()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._running.append(name)
        self._since = now

    def _end(self) -> None:
        now = self._clock()
        self.seconds[self._running.pop()] += now - self._since
        self._since = now

    def take(self) -> dict[str, float]:
        """Seconds since the last call, in the order in which stages began."""
        taken, self.seconds = self.seconds, {}
        return taken


class StageRecorder(Collector):
    """The stages of one handler, whichever way they are had."""

    def __init__(self, handler: LoadedHandler) -> None:
        self._clock = StageClock()
        self._tap: OwnStages | None = None
        if is_offpath(handler.instance):
            self._tap = OwnStages(handler.instance)
        else:
            clock_stages(handler, self._clock)

    def take_batch(self) -> tuple[Seconds, Seconds]:
        """See `Collector`; the clocks are in the handler."""
        return self._tap.take() if self._tap else (self._clock.take(), {})

    @contextmanager
    def marked_by(self, enter_range: Enter) -> Iterator[None]:
        """Enters `enter_range(stage)` with each stage while the block runs."""
        if self._tap:
            with self._tap.marked_by(enter_range):
                yield
            return
        self._clock.enter_range = enter_range
        try:
            yield
        finally:
            self._clock.enter_range = no_range


def is_offpath(instance: object) -> bool:
    """Whether it is our handler or a class of the user's that extends it."""
    return any(
        (cls.__module__, cls.__name__)
        == ("offpath.handler.classifier", "OffpathClassifier")
        for cls in type(instance).__mro__
    )


class OwnStages:
    """Takes what our handler's StageTimer measured, where the handler hands it to its metrics."""

    def __init__(self, instance: Any) -> None:
        from offpath.handler import stages

        self._stage = stages.Stage
        # Any: mypy takes a method for something that is never assigned to.
        self._timer_class: Any = stages.StageTimer
        self._host_s: Seconds = {}
        self._device_s: Seconds = {}
        metrics = instance._metrics
        metrics.count_batch = self._tapped(metrics.count_batch)
        self._watch_device()

    def take(self) -> tuple[Seconds, Seconds]:
        """Seconds by stage since the last call: of the host, of the accelerator."""
        taken = self._host_s, self._device_s
        self._host_s, self._device_s = {}, {}
        return taken

    def _tapped(self, count_batch: Callable[..., None]) -> Callable[..., None]:
        def count(timings: Any, size: int, errors: Sequence[str]) -> None:
            self._host_s = {
                stage.value: seconds for stage, seconds in timings.seconds.items()
            }
            count_batch(timings, size, errors)

        return count

    def _watch_device(self) -> None:
        """Keeps the events' times: the engine hands them over as shares that include TRANSFER."""
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
        """See `StageRecorder.marked_by`; stages that share a block make one range."""
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


def clock_stages(handler: LoadedHandler, clock: StageClock) -> None:
    """Puts a clock around the functions that are the handler's stages.

    Classes and module are changed in place; the process is the handler's own. Generators and
    coroutines are left alone: calling them is not running them.
    """
    if handler.instance is not None:
        _clock_class(type(handler.instance), clock)
    _clock_module(handler.module, clock)


def own_classes(cls: type) -> list[type]:
    """The class and its bases as far as the user wrote them."""
    return [
        base
        for base in cls.__mro__
        if base.__module__.split(".")[0] not in FOREIGN_PACKAGES
    ]


def _clock_class(cls: type, clock: StageClock) -> None:
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


def _clock_module(module: ModuleType, clock: StageClock) -> None:
    if module.__name__.split(".")[0] in FOREIGN_PACKAGES:
        return
    for name, value in list(vars(module).items()):
        is_own = getattr(value, "__module__", None) == module.__name__
        if is_own and isinstance(value, FunctionType) and is_stage(name, value):
            setattr(module, name, clocked(value, clock, name))


def is_stage(name: str, function: object) -> bool:
    """Whether a function of the handler's can be timed, and is no frame around the stages."""
    if not isinstance(function, FunctionType) or name in NOT_STAGES:
        return False
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        return False
    return not name.startswith("__") and not hasattr(function, "__wrapped_stage__")


def clocked(
    function: Callable[..., Any], clock: StageClock, stage: str
) -> Callable[..., Any]:
    """The function with a clock around it."""

    @functools.wraps(function)
    def run_stage(*args: Any, **kwargs: Any) -> Any:
        with clock.stage(stage):
            return function(*args, **kwargs)

    run_stage.__wrapped_stage__ = function  # type: ignore[attr-defined]
    return run_stage
