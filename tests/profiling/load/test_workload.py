from __future__ import annotations

import pytest

from offpath.errors import ExpectedError
from offpath.profiling.load import workload
from offpath.profiling.load.workload import WorkloadSpec, load_workload

TINY = WorkloadSpec("tiny", (120, 80), 6_000, count=12)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OFFPATH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(workload.SPECS, "tiny", TINY)
    return tmp_path / "cache" / "workloads"


def test_a_changed_byte_in_the_cache_is_detected():
    path = load_workload("tiny").paths[3]
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises(ExpectedError, match=r"003\.jpg.*delete"):
        load_workload("tiny")
