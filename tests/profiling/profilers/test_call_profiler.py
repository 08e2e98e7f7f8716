"""Calls of all threads: both profilers give the same figures, and pstats reads them."""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from offpath.profiling.profilers.call_profiler import (
    CallProfiler,
    StackProfile,
    ThreadProfile,
    read_stats,
)
from offpath.profiling.profilers.cprofile import REST, CallCollector, make_samples
from tests.support.clock import Clock

Make = Callable[[Callable[[], float]], ThreadProfile]
BACKENDS = [
    pytest.param(StackProfile, id="sys-setprofile"),
    pytest.param(
        cProfile.Profile,
        id="cprofile",
        marks=pytest.mark.skipif(
            sys.version_info >= (3, 12), reason="cProfile mixes threads up from 3.12 on"
        ),
    ),
]


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def collect(make: Make, work: Callable[[], Any], clock: Clock | None = None) -> Any:
    clock = clock or Clock()
    collector = CallCollector(CallProfiler(lambda: make(clock)))
    with collector.watching():
        work()
    return read_stats(collector._profiler.merge())


def find(stats: Any, name: str) -> Any:
    return next(figures for key, figures in stats.items() if name in key[2])


@pytest.mark.parametrize("make", BACKENDS)
def test_recursion_counts_calls_and_time_once(make):
    stats = collect(make, lambda: fib(10))
    primitive, calls, own_s, cumulative_s, callers = find(stats, "fib")
    assert (primitive, calls) == (1, 177)
    assert own_s == pytest.approx(cumulative_s)
    assert {caller[2] for caller in callers} == {"fib", "<lambda>"}


@pytest.mark.parametrize("make", BACKENDS)
def test_a_pools_thread_counts_while_it_works_and_not_while_it_waits(make):
    clock = Clock()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(clock.pass_s, 1).result()
        clock.pass_s(100)  # The thread waits for work and is not watched.
        stats = collect(make, lambda: pool.submit(clock.pass_s, 1).result(), clock)
    assert find(stats, "pass_s")[:4] == pytest.approx((1, 1, 1.0, 1.0))
    # Own times add up: the work on the thread, and the wait for it.
    assert sum(figures[2] for figures in stats.values()) == pytest.approx(2.0)


@pytest.mark.parametrize("make", BACKENDS)
def test_own_and_cumulative_times_are_exact(make):
    clock = Clock()

    def inner() -> None:
        clock.pass_s(3)

    def outer() -> None:
        clock.pass_s(1)
        inner()
        clock.pass_s(2)

    stats = collect(make, outer, clock)
    times = {name: find(stats, name)[2:4] for name in ("outer", "inner", "pass_s")}
    assert times["outer"] == pytest.approx((0.0, 6.0))
    assert times["inner"] == pytest.approx((0.0, 3.0))
    assert times["pass_s"] == pytest.approx((6.0, 6.0))
    callers = {key[2]: figures[:2] for key, figures in find(stats, "pass_s")[4].items()}
    assert callers == {"outer": (2, 2), "inner": (1, 1)}


@pytest.mark.parametrize("make", BACKENDS)
def test_pstats_reads_the_file(make, tmp_path: Path):
    file = tmp_path / "deep" / "a.prof"
    collector = CallCollector(CallProfiler(lambda: make(Clock())))
    with collector.watching():
        fib(5)
    collector.finish(str, file)
    assert find(pstats.Stats(str(file)).stats, "fib")[1] == 15  # type: ignore


def test_one_function_compiled_twice_is_one_function():
    functions: list[dict[str, Any]] = [{}, {}]
    for names in functions:
        exec(compile("def same(): pass", "same.py", "exec"), names)
    stats = collect(StackProfile, lambda: [names["same"]() for names in functions])
    assert find(stats, "same")[:2] == (2, 2)


def test_small_functions_become_one_row_per_bucket_and_nothing_is_lost():
    stats: Any = {("a.py", 1, "large"): (1, 1, 10.0, 10.0, {})}
    stats.update({("b.py", n, "small"): (2, 2, 1e-4, 1e-4, {}) for n in range(50)})
    samples = make_samples(stats)
    assert [sample.name for sample in samples] == ["large", REST]
    assert samples[1].calls == 100
    assert sum(sample.own_s for sample in samples) == pytest.approx(10.005)
