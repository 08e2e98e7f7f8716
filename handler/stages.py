"""Measures the time of a batch by named stages, with perf_counter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum


class Stage(str, Enum):
    """The parts of a batch, in their order."""

    READ = "read"  # request -> payload bytes
    DECODE = "decode"  # payload bytes -> full or scaled pixels
    TRANSFORM = "transform"  # pixels -> the model's input in the batch buffer
    TRANSFER = "transfer"  # batch buffer -> device
    INFERENCE = "inference"  # normalise, forward, activation, top-k, copy back
    POSTPROCESS = "postprocess"  # top-k -> encoded replies
    LOG = "log"  # records -> kernel


class StageTimer:
    """Times one batch, from the creation of this object."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        self.seconds: dict[Stage, float] = dict.fromkeys(Stage, 0.0)

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        start = self._clock()
        try:
            yield
        finally:
            self.seconds[stage] += self._clock() - start

    @contextmanager
    def shared(self, shares: Mapping[Stage, float]) -> Iterator[None]:
        """Splits the block's wall time over stages that ran interleaved.

        Args:
            shares: time per stage as counted inside the block, on several threads or on a device;
                read when the block ends. Only the proportions matter.
        """
        start = self._clock()
        try:
            yield
        finally:
            wall = self._clock() - start
            total = sum(shares.values())
            for stage, share in shares.items():
                self.seconds[stage] += wall * share / total if total else 0.0

    def add(self, seconds: Mapping[Stage, float]) -> None:
        """Adds work that was done before this object was made: the total grows by it too."""
        for stage, value in seconds.items():
            self.seconds[stage] += value
            self._start -= value

    def elapsed_s(self) -> float:
        return self._clock() - self._start

    def read(self) -> BatchTimings:
        return BatchTimings(dict(self.seconds), self.elapsed_s())


class BatchTimings:
    """Seconds of a batch, per stage and in total.

    Attributes:
        other_s: seconds outside all stages. With them, the stages add up to the total.
    """

    def __init__(self, seconds: Mapping[Stage, float], total_s: float) -> None:
        self.seconds = seconds
        self.total_s = total_s
        self.other_s = max(0.0, total_s - sum(seconds.values()))  # a sum may be rounded up


def format_server_timing(timings: BatchTimings) -> str:
    """Formats the stages as the value of a Server-Timing header, in milliseconds.

    Syntax: https://www.w3.org/TR/server-timing/#the-server-timing-header-field
    """
    parts = [f"{stage.value};dur={value * 1e3:.2f}" for stage, value in timings.seconds.items()]
    return ", ".join([*parts, f"total;dur={timings.total_s * 1e3:.2f}"])
