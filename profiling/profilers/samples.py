"""Batches, functions and lines that collectors find in a handler's process. No statistics."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import msgspec

from offpath.profiling.core.run import Run

# A run keeps a variant's functions, lines and written files in `details[...][variant]`.
FUNCTIONS, LINES, FILES = "functions", "lines", "files"
Sample = TypeVar("Sample", "FunctionSample", "LineSample")


@dataclass(frozen=True)
class BatchSample:
    """One batch.

    Attributes:
        total_s: duration of the call of `handle`.
        stages_s: seconds by stage, in the order of the path. The rest of the total is `other`.
        device_s: seconds by stage on the accelerator, by its own events; empty without one.
    """

    size: int
    total_s: float
    stages_s: Mapping[str, float] = field(default_factory=dict)
    device_s: Mapping[str, float] = field(default_factory=dict)


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


def read_samples(run: Run, kind: str, variant: str, sample: type[Sample]) -> list[Sample]:
    rows = run.details.get(kind, {}).get(variant, [])
    return [msgspec.convert(row, sample) for row in rows]


def list_files(run: Run, variant: str) -> list[str]:
    return list(run.details.get(FILES, {}).get(variant, []))


def make_shortener(folder: str) -> Callable[[str], str]:
    """Returns a function that shortens source paths: reports name no folder of this machine.

    In the unzipped archive `<folder>/offpath/handler/pipeline.py` becomes `handler/pipeline.py`.
    """
    paths = sysconfig.get_paths()
    # Site-packages lies inside the standard library's folder, and the archive may lie anywhere.
    roots = [
        f"{folder}/offpath",
        folder,
        *(paths[name] for name in ("purelib", "platlib", "stdlib")),
        str(Path(__file__).parents[2]),
    ]
    return cache(partial(shorten_path, roots=roots))


def shorten_path(file: str, roots: Sequence[str]) -> str:
    """Returns the path below the first root that holds it, else its last two parts."""
    for root in roots:
        if file.startswith(root.rstrip(os.sep) + os.sep):
            return file[len(root.rstrip(os.sep)) + 1 :]
    return os.sep.join(file.split(os.sep)[-2:]) if os.sep in file else file
