"""CPU and memory of other processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from offpath.profiling.load.window import add_up, read_cpu_s, read_pss_bytes, read_rss_bytes

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
    after = add_up(groups, read_cpu_s)
    assert after == {"busy": pytest.approx(used_s, abs=0.05), "nobody": 0}
    for read in (read_rss_bytes, read_pss_bytes):
        memory = add_up(groups, read)
        assert memory["busy"] > 50_000_000 and memory["nobody"] == 0
    burner.kill()
    burner.wait()
    for read in (read_cpu_s, read_rss_bytes, read_pss_bytes):
        assert add_up(groups, read) == {"busy": 0, "nobody": 0}
