"""GPU sampling: with the real library here, and with known devices where it reads them."""

from __future__ import annotations

import importlib.util
import time

import pytest

from offpath.profiling.load.gpu import (
    GpuReading,
    GpuSampler,
    NoGpu,
    NvmlReader,
)

HAS_GPU = False
if importlib.util.find_spec("pynvml"):
    try:
        NvmlReader().close()
        HAS_GPU = True
    except NoGpu:
        pass

DEVICES = [{"index": 0, "name": "T4", "memory_bytes": 16 * 2**30}]


class KnownReader:
    """One device: busy half, then wholly; fails at `fails_at`."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.reads, self.fails_at, self.is_closed = 0, fails_at, False

    def list_devices(self):
        return DEVICES

    def read(self, at_s: float):
        if self.reads == self.fails_at:
            raise NoGpu("reading stopped: GPU is lost")
        self.reads += 1
        busy = 0.5 if self.reads % 2 else 1.0
        return [GpuReading(at_s, 0, busy, self.reads * 2**30)]

    def close(self) -> None:
        self.is_closed = True


def sample_until(reader: KnownReader, is_done) -> GpuSampler:
    with GpuSampler(interval_s=0.001, open_reader=lambda: reader) as sampler:
        deadline = time.monotonic() + 10
        while not is_done(sampler.samples) and time.monotonic() < deadline:
            time.sleep(0.001)
    return sampler


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_without_a_driver_the_block_runs_and_the_reason_is_kept():
    ran = False
    with GpuSampler() as sampler:
        ran = True
    assert ran
    assert sampler.samples.readings == []
    assert (
        "driver" in sampler.samples.absent or "not installed" in sampler.samples.absent
    )


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU")
def test_a_real_device_is_read():
    with GpuSampler(interval_s=0.1) as sampler:
        time.sleep(0.5)
    assert sampler.samples.absent is None
    assert all(0 <= r.utilisation <= 1 for r in sampler.samples.readings)
    assert all(r.memory_used_bytes > 0 for r in sampler.samples.readings)


def test_readings_are_kept_one_by_one_and_the_library_is_let_go():
    reader = KnownReader()
    sampler = sample_until(reader, lambda samples: len(samples.readings) >= 4)
    readings = sampler.samples.readings
    assert [r.utilisation for r in readings[:4]] == [0.5, 1.0, 0.5, 1.0]
    assert [r.memory_used_bytes for r in readings[:2]] == [2**30, 2 * 2**30]
    assert reader.is_closed
    plain = sampler.samples.to_dict()
    assert plain["devices"] == DEVICES and plain["readings"][0]["utilisation"] == 0.5


def test_a_device_that_is_lost_ends_the_readings_and_not_the_block():
    reader = KnownReader(fails_at=2)
    sampler = sample_until(reader, lambda samples: samples.absent)
    assert len(sampler.samples.readings) == 2
    assert sampler.samples.absent == "reading stopped: GPU is lost"
    assert reader.is_closed
