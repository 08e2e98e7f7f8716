"""A loaded handler, and what a collector finds while it handles batches.

`stages.py`, `cprofile.py` and `threads.py` have the collectors. There are no statistics here: a
sample is one batch, one function or one source line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

Seconds = Mapping[str, float]
FOREIGN_PACKAGES = ("ts", "torch", "torchvision", "builtins", "abc")


@dataclass
class LoadedHandler:
    """A handler that is ready for requests.

    Attributes:
        entry: the function that the worker calls, `entry(rows, context)`.
        context: TorchServe's context of the handler.
    """

    entry: Callable[[list[dict[str, Any]], Any], Any]
    context: Any

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
        kind: the top package, see `cprofile.py`.
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
