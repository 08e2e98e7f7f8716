"""What the collectors find in a handler's process: batches, functions, lines; no statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from offpath.profiling.core.run import Run

Sample = TypeVar("Sample", "FunctionSample", "LineSample")


@dataclass(frozen=True)
class BatchSample:
    """One batch.

    Attributes:
        total_s: `handle`, from call to return.
        stages_s: stage -> seconds, in the order of the path; what they leave is `other`.
        device_s: stage -> seconds of the accelerator, by its own events; empty without one.
    """

    size: int
    total_s: float
    stages_s: Mapping[str, float] = field(default_factory=dict)
    device_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FunctionSample:
    """One function over all batches, all threads together.

    Attributes:
        bucket: the kind of work, see `buckets.py`.
        own_s: without what it called; own times of all functions add up to the whole.
    """

    name: str
    file: str
    line: int
    bucket: str
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


# Where a run keeps a variant's functions, lines and written files: `details[...][variant]`.
FUNCTIONS, LINES, FILES = "functions", "lines", "files"


def read_samples(
    run: Run, kind: str, variant: str, sample: type[Sample]
) -> list[Sample]:
    """A variant's functions or lines; none where the run has none."""
    rows = run.details.get(kind, {}).get(variant, [])
    return [msgspec.convert(row, sample) for row in rows]


def list_files(run: Run, variant: str) -> list[str]:
    """What was written beside the JSON for a variant."""
    return list(run.details.get(FILES, {}).get(variant, []))
