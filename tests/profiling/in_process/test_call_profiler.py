"""Calls of all threads: both profilers say the same, and pstats reads them."""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from offpath.profiling.in_process.call_profiler import (
    CallProfiler,
    StackProfile,
    ThreadProfile,
    merge_profiles,
    read_stats,
)
from offpath.profiling.in_process.cprofile import REST, CallCollector, make_samples

pytestmark = pytest.mark.timing

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


def nap() -> None:
    time.sleep(0.02)


def collect(make: Callable[[], ThreadProfile], work: Callable[[], Any]) -> Any:
    collector = CallCollector(CallProfiler(make))
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
def test_a_pools_threads_count_while_they_work_and_not_while_they_wait(make):
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: nap(), range(2)))
        time.sleep(0.3)  # the threads wait for work; nobody is watching

        def work() -> None:
            list(pool.map(lambda _: nap(), range(4)))

        stats = collect(make, work)
    assert find(stats, "nap")[:2] == (4, 4)
    assert find(stats, "time.sleep")[2] == pytest.approx(0.08, rel=0.5)
    own_s = sum(figures[2] for figures in stats.values())
    # Four naps on the threads and the wait for them.
    assert 0.08 < own_s < 0.28


@pytest.mark.parametrize("make", BACKENDS)
def test_own_times_add_up_to_the_whole(make):
    begin = time.perf_counter()
    stats = collect(make, lambda: [nap(), fib(12), sorted(range(1000))])
    whole_s = time.perf_counter() - begin
    own_s = sum(figures[2] for figures in stats.values())
    assert 0.02 < own_s <= whole_s


def test_the_python_profilers_figures_are_exact():
    now = [0.0]
    profile = StackProfile(lambda: now[0])
    outer, inner = ("f.py", 1, "outer"), ("f.py", 9, "inner")
    first, second = profile._add(1, outer), profile._add(2, inner)
    profile._enter(first)
    now[0] = 1.0
    profile._enter(second)
    now[0] = 4.0
    profile._leave()
    now[0] = 6.0
    profile._leave()
    profile.create_stats()
    assert profile.stats == {
        outer: (1, 1, 3.0, 6.0, {}),
        inner: (1, 1, 3.0, 3.0, {outer: (1, 1, 3.0, 3.0)}),
    }


@pytest.mark.parametrize("make", BACKENDS)
def test_pstats_reads_the_files_and_adds_them_up(make, tmp_path: Path):
    files = [str(tmp_path / "deep" / name) for name in ("a.prof", "b.prof")]
    for file in files:
        collector = CallCollector(CallProfiler(make))
        with collector.watching():
            fib(5)
        collector.finish(str, Path(file))
    assert find(pstats.Stats(files[0]).stats, "fib")[1] == 15  # type: ignore
    merged = find(read_stats(merge_profiles(files)), "fib")
    assert merged[:2] == (2, 30)
    assert {key[2]: calls for key, (calls, *_) in merged[4].items()}["fib"] == 28


def test_one_function_compiled_twice_is_one_function():
    profile = StackProfile(lambda: 0.0)
    for _ in range(2):
        code = compile("pass", "same.py", "exec")
        profile._enter(profile._add(id(code), ("same.py", 1, "f")))
        profile._leave()
    profile.create_stats()
    assert profile.stats == {("same.py", 1, "f"): (2, 2, 0.0, 0.0, {})}


def test_small_functions_become_one_row_per_bucket_and_nothing_is_lost():
    stats: Any = {("a.py", 1, "large"): (1, 1, 10.0, 10.0, {})}
    stats.update({("b.py", n, "small"): (2, 2, 1e-4, 1e-4, {}) for n in range(50)})
    samples = make_samples(stats)
    assert [sample.name for sample in samples] == ["large", REST]
    assert samples[1].calls == 100
    assert sum(sample.own_s for sample in samples) == pytest.approx(10.005)
