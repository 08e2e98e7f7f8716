"""CPU and memory of other processes."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from offpath.profiling.core.gpu import Ticker
from offpath.profiling.load.running_server import (
    sample_cpu_s,
    sample_pss_bytes,
    sample_rss_bytes,
    subtract,
)

# Burns CPU until the kernel has counted a second of it, then waits to be told to end.
BURN = """
import sys, time
block = bytearray(50_000_000)
while time.process_time() < 1.0: pass
print(time.process_time(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def burner():
    process = subprocess.Popen(
        [sys.executable, "-c", BURN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_a_process_is_sampled_until_it_has_ended_and_counts_nothing_then(burner):
    used_s = float(burner.stdout.readline())
    groups = {"busy": [burner.pid], "nobody": []}
    after = sample_cpu_s(groups)
    assert after == {"busy": pytest.approx(used_s, abs=0.05), "nobody": 0}
    for sample in (sample_rss_bytes, sample_pss_bytes):
        assert sample(groups)["busy"] > 50_000_000
        assert sample(groups)["nobody"] == 0
    burner.kill()
    burner.wait()
    for sample in (sample_cpu_s, sample_rss_bytes, sample_pss_bytes):
        assert sample(groups) == {"busy": 0, "nobody": 0}


def test_differences_are_by_group_and_a_new_group_began_at_nothing():
    assert subtract({"a": 1.2504, "b": 0.5}, {"a": 0.25}) == {"a": 1.0, "b": 0.5}


def test_a_ticker_ticks_until_its_block_ends():
    ticks: list[float] = []
    three = threading.Event()

    def tick(at_s: float) -> None:
        ticks.append(at_s)
        if len(ticks) == 3:
            three.set()

    before = threading.active_count()
    with Ticker(0.001, tick):
        assert three.wait()
    assert 0 < ticks[0] < ticks[1] < ticks[2]
    assert threading.active_count() == before
