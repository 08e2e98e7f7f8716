"""Calls of a handler and the work of its pools, by function and package."""

from __future__ import annotations

import cProfile
import pstats
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from offpath.profiling.profilers.threads import (
    REST,
    CallCollector,
    find_package,
    make_samples,
    working_on_this_thread,
)
from tests.support.clock import Clock


def test_the_work_of_a_pool_counts_once_and_its_wait_does_not(tmp_path: Path):
    clock, prof = Clock(), tmp_path / "deep" / "a.prof"
    collector = CallCollector(cProfile.Profile(clock))
    with ThreadPoolExecutor(1) as pool:
        with collector.watching():
            assert list(pool.map(lambda s: clock.pass_s(s), [1, 2])) == [None, None]
        # Not watched.
        pool.submit(clock.pass_s, 100).result()
    found = {row.name: row for row in collector.finish(str, prof)}
    assert (found["pass_s"].calls, found["pass_s"].own_s) == (2, 3.0)
    assert sum(row.own_s for row in found.values()) == pytest.approx(3.0)
    assert "run" not in found
    stats: Any = pstats.Stats(str(prof))
    assert {key[2]: figures[1] for key, figures in stats.stats.items()}["pass_s"] == 2


def test_other_threads_keep_their_pools_and_an_error_is_the_futures():
    names: list[str] = []

    def submit() -> None:
        pool.submit(lambda: names.append(threading.current_thread().name)).result()

    with ThreadPoolExecutor(1, "pool") as pool, working_on_this_thread():
        submit()
        other = threading.Thread(target=submit)
        other.start()
        other.join()
        failed = pool.submit(int, "x")
    assert names == [threading.current_thread().name, "pool_0"]
    assert isinstance(failed.exception(), ValueError)


@pytest.mark.parametrize(
    ("file", "name", "package"),
    [
        ("botocore/client.py", "_make_api_call", "botocore"),
        ("handler/image/decode.py", "decode_image", "handler"),
        ("mine.py", "handle", "mine"),
        ("json/encoder.py", "iterencode", "Python"),
        ("tempfile.py", "NamedTemporaryFile", "Python"),
        ("<frozen os>", "fsdecode", "Python"),
        ("", "<built-in method torch._C._nn.linear>", "torch"),
        ("", "<method 'div' of 'torch._C.TensorBase' objects>", "torch"),
        ("", "<method 'get' of 'dict' objects>", "Python"),
        ("", "<built-in method posix.unlink>", "Python"),
    ],
)
def test_a_function_counts_to_its_top_package(file: str, name: str, package: str):
    assert find_package(file, name) == package


def test_small_functions_become_one_row_per_package_and_nothing_is_lost():
    stats: Any = {("a.py", 1, "large"): (1, 1, 10.0, 10.0, {})}
    stats.update({("b.py", n, "small"): (2, 2, 1e-4, 1e-4, {}) for n in range(50)})
    samples = make_samples(stats, str)
    assert [(sample.name, sample.kind) for sample in samples] == [("large", "a"), (REST, "b")]
    assert samples[1].calls == 100
    assert sum(sample.own_s for sample in samples) == pytest.approx(10.005)
