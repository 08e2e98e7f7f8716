from __future__ import annotations

import subprocess
import sys

import pytest

from offpath.profiling.load.sampling import (
    Ticker,
    sample_cpu_s,
    sample_rss_bytes,
    subtract,
)

pytestmark = pytest.mark.timing

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


def test_cpu_of_a_busy_process_is_what_it_says_itself(burner):
    used_s = float(burner.stdout.readline())
    groups = {"busy": [burner.pid], "nobody": []}
    after = sample_cpu_s(groups)
    assert after["busy"] == pytest.approx(used_s, abs=0.05)
    assert after["nobody"] == 0
    assert subtract(after, {"busy": 0.4}) == {
        "busy": pytest.approx(used_s - 0.4, abs=0.05),
        "nobody": 0,
    }


def test_memory_of_a_process(burner):
    burner.stdout.readline()
    assert sample_rss_bytes({"busy": [burner.pid]})["busy"] > 50_000_000


def test_a_process_that_has_ended_counts_as_nothing(burner):
    burner.kill()
    burner.wait()
    assert sample_cpu_s({"gone": [burner.pid]}) == {"gone": 0.0}
    assert sample_rss_bytes({"gone": [burner.pid]}) == {"gone": 0}


def test_a_ticker_ticks_until_its_block_ends():
    import time

    ticks: list[float] = []
    with Ticker(0.05, ticks.append):
        time.sleep(0.4)
    counted = len(ticks)
    assert 3 <= counted <= 8 and ticks == sorted(ticks)
    time.sleep(0.15)
    assert len(ticks) == counted
