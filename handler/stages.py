"""Where a batch's time goes: named stages, measured with perf_counter, one batch at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum


class Stage(str, Enum):
    """The parts of `handle`, in their order."""

    READ = "read"  # rows from TorchServe -> payload bytes
    DECODE = "decode"  # payload bytes -> full or scaled pixels
    TRANSFORM = "transform"  # pixels -> the model's square in the batch buffer
    TRANSFER = "transfer"  # batch buffer -> device
    INFERENCE = "inference"  # normalise, forward, activation, top-k, copy back
    POSTPROCESS = "postprocess"  # top-k -> encoded replies, statuses and headers
    LOG = "log"  # records -> kernel


class StageTimer:
    """Times one batch.

    The clock starts with the object. What no stage covers is `other_s`, so the table adds up.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = clock()
        self.seconds: dict[Stage, float] = dict.fromkeys(Stage, 0.0)

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Adds the time of the block to `stage`."""
        start = self._clock()
        try:
            yield
        finally:
            self.seconds[stage] += self._clock() - start

    @contextmanager
    def shared(self, shares: Mapping[Stage, float]) -> Iterator[None]:
        """Splits the block's wall time over stages that ran interleaved.

        Args:
            shares: seconds per stage as the parts themselves counted them (on several threads or
                on a device); read when the block ends. Only their proportion matters.
        """
        start = self._clock()
        try:
            yield
        finally:
            wall = self._clock() - start
            total = sum(shares.values())
            for stage, share in shares.items():
                self.seconds[stage] += wall * share / total if total else 0.0

    def elapsed_s(self) -> float:
        """Seconds since the batch began."""
        return self._clock() - self._start

    def read(self) -> BatchTimings:
        """The batch's account so far; what comes later does not change it."""
        return BatchTimings(dict(self.seconds), self.elapsed_s())


class BatchTimings:
    """A batch's account: seconds per stage and in all."""

    def __init__(self, seconds: Mapping[Stage, float], total_s: float) -> None:
        self.seconds = seconds
        self.total_s = total_s

    @property
    def other_s(self) -> float:
        """What no stage covers."""
        return self.total_s - sum(self.seconds.values())


def format_server_timing(timings: BatchTimings) -> str:
    """Stages as a Server-Timing header value, in milliseconds.

    Syntax: https://www.w3.org/TR/server-timing/#the-server-timing-header-field
    """
    parts = [
        f"{stage.value};dur={value * 1e3:.2f}"
        for stage, value in timings.seconds.items()
    ]
    return ", ".join([*parts, f"total;dur={timings.total_s * 1e3:.2f}"])
