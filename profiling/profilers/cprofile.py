"""Own and cumulative time of each function that a handler's batches call, with its kind of work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offpath.profiling.profilers.buckets import find_buckets
from offpath.profiling.profilers.call_profiler import (
    CallProfiler,
    Function,
    Stats,
    read_stats,
)
from offpath.profiling.profilers.handler_driver import Collector
from offpath.profiling.profilers.samples import FUNCTIONS, FunctionSample
from offpath.profiling.profilers.worker_threads import watching_threads

# Functions below these shares of the total are added up in one row per bucket.
SMALL_OWN, SMALL_CUMULATIVE = 2e-4, 5e-3
REST = "(smaller functions)"
# Functions of the profiler itself, which run inside the watched time.
INSTRUMENT = ("_lsprof", "sys.setprofile", "sys.monitoring")
INSTRUMENT_FILES = {
    str(Path(__file__).with_name(name))
    for name in (
        "call_profiler.py",
        "cprofile.py",
        "handler_driver.py",
        "worker_threads.py",
    )
}


class CallCollector(Collector):
    """A profiler of calls: `handle` on its thread, and the work of the handler's own threads."""

    def __init__(self, profiler: CallProfiler | None = None) -> None:
        self._profiler = profiler or CallProfiler()

    @contextmanager
    def watching(self) -> Iterator[None]:
        with watching_threads(self._profiler.watching), self._profiler.watching():
            yield

    def finish(
        self, shorten: Callable[[str], str], path: Path | None
    ) -> dict[str, list[dict[str, Any]]]:
        """Returns all functions. Writes the .prof file for snakeviz or pstats."""
        profile = self._profiler.merge()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            profile.dump_stats(path)
        samples = make_samples(shorten_stats(read_stats(profile), shorten))
        return {FUNCTIONS: [asdict(sample) for sample in samples]}


def shorten_stats(stats: Stats, shorten: Callable[[str], str]) -> Stats:
    """Returns the statistics with short file names and without the profiler's own functions."""

    def rename(function: Function) -> Function:
        file, line, name = function
        return (file if file == "~" else shorten(file), line, name)

    return {
        rename(function): (
            *figures[:4],
            {rename(caller): edge for caller, edge in figures[4].items()},
        )
        for function, figures in stats.items()
        if not is_instrument(function)
    }


def is_instrument(function: Function) -> bool:
    """Tells whether a function belongs to the profiler."""
    file, _, name = function
    return file in INSTRUMENT_FILES or any(part in name for part in INSTRUMENT)


def make_samples(stats: Stats) -> list[FunctionSample]:
    """Makes samples of pstats' figures. Small functions become one row per bucket."""
    buckets = find_buckets(stats)
    whole_s = sum(figures[2] for figures in stats.values())
    kept: list[FunctionSample] = []
    rest: dict[str, tuple[int, float]] = {}
    for function, (_, calls, own_s, cumulative_s, _) in stats.items():
        bucket = buckets[function]
        if own_s < SMALL_OWN * whole_s and cumulative_s < SMALL_CUMULATIVE * whole_s:
            before = rest.get(bucket, (0, 0.0))
            rest[bucket] = (before[0] + calls, before[1] + own_s)
            continue
        file, line, name = function
        file = "" if file == "~" else file
        kept.append(FunctionSample(name, file, line, bucket, calls, own_s, cumulative_s))
    kept.sort(key=lambda sample: -sample.cumulative_s)
    return kept + [
        FunctionSample(REST, "", 0, bucket, calls, own_s, own_s)
        for bucket, (calls, own_s) in rest.items()
    ]
