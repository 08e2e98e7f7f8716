from __future__ import annotations

import multiprocessing

import pytest
import torch

from offpath.errors import ExpectedError
from offpath.profiling.load.core_limits import LimitMeter
from offpath.profiling.load.workload import WorkloadSpec, encode_all

TINY = WorkloadSpec("tiny", (120, 80), 6_000, count=3)


# Each process of a limit imports torch.
@pytest.mark.slow
def test_limits_use_all_processes_at_once_and_count_their_cpu(tmp_path, monkeypatch):
    paths = []
    for index, data in enumerate(encode_all(TINY)):
        paths.append(tmp_path / f"{index}.jpg")
        paths[-1].write_bytes(data)
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff nothing")
    with LimitMeter("near-free", cores=2, batch_size=8, seconds=0.5) as meter:
        with pytest.raises(ExpectedError, match=r"broken\.jpg"):
            meter.measure_decode([broken])
        decode = meter.measure_decode(paths)
        assert len(multiprocessing.active_children()) == 2
        with monkeypatch.context() as patched:
            patched.setattr(torch.cuda, "is_available", lambda: True)
            forward = meter.measure_forward()
        # Nothing of theirs stays on the device that the servers are measured on.
        assert not multiprocessing.active_children()
    for figures in (decode, forward):
        assert figures["images"] > 0 and figures["elapsed_s"] >= 0.5
        assert 0 < figures["cpu_s.limit"] <= 2 * figures["elapsed_s"] * 1.1
    assert forward["images"] % 8 == 0
