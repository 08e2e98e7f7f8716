from __future__ import annotations

import mmap
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from offpath.profiling.load.sampling import (
    ANONYMOUS,
    FILES,
    KINDS,
    LIBRARIES,
    add_pages,
    kind_of,
    sample_pages,
)

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
