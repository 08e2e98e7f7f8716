"""CPU and memory of other processes."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from offpath.profiling.load.sampling import (
    ANONYMOUS,
    FILES,
    KINDS,
    LIBRARIES,
    Ticker,
    add_pages,
    kind_of,
    sample_cpu_s,
    sample_pages,
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


SMAPS = """\
7f00-7f10 r--p 00000000 fe:00 12   /env/lib/libtorch_cpu.so.2
Size:                 64 kB
Rss:                  40 kB
Pss:                  10 kB
Private_Clean:         4 kB
Private_Dirty:         8 kB
VmFlags: rd mr mw me
7f20-7f30 rw-p 00000000 00:00 0
Pss:                 100 kB
Pss_Dirty:           100 kB
Private_Dirty:       100 kB
7f40-7f50 rw-p 00000000 fe:00 13                         /models/my weights.pt
Pss:                   6 kB
Private_Clean:         0 kB
"""


def test_pages_are_added_up_by_kind() -> None:
    pss, unique = Counter[str](), Counter[str]()
    add_pages(SMAPS, pss, unique)
    assert {kind: (pss[kind] // 1024, unique[kind] // 1024) for kind in KINDS} == {
        LIBRARIES: (10, 12),
        ANONYMOUS: (100, 100),
        FILES: (6, 0),
    }


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("[heap]", ANONYMOUS),
        ("", ANONYMOUS),
        ("/usr/lib/libc.so.6", LIBRARIES),
        ("/usr/bin/python3.11", LIBRARIES),
        ("/tmp/models/weights.pt", FILES),
        ("/tmp/models/model.soup", FILES),
    ],
)
def test_kind_follows_from_the_file(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_own_process_is_measured_and_an_ended_one_counts_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(b"x" * 8_000_000)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert mapped[:: mmap.PAGESIZE]  # reads each page
        pages = sample_pages([os.getpid(), 2**22 + 1])
        mapped.close()
    assert pages[FILES].pss_bytes > 7_900_000
    rollup = Path("/proc/self/smaps_rollup").read_text()
    own = 1024 * int(re.search(r"^Pss: +(\d+)", rollup, re.M)[1])  # type: ignore[index]
    total = sum(kind.pss_bytes for kind in pages.values())
    assert total == pytest.approx(own, rel=0.2)
