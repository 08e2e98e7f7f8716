"""GPU sampling: with the real library here, and with known devices where it reads them."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from offpath.profiling.core.host import (
    GpuReading,
    GpuSampler,
    NoGpu,
    NvmlReader,
)
from offpath.profiling.load.window import WindowWatcher
from tests.support.eventually import eventually

HAS_GPU = False
if importlib.util.find_spec("pynvml"):
    try:
        NvmlReader().close()
        HAS_GPU = True
    except NoGpu:
        pass


class KnownReader:
    """One device: busy half, then wholly; fails at `fails_at`."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.reads, self.fails_at, self.is_closed = 0, fails_at, False

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
        eventually(lambda: is_done(sampler.readings))
    return sampler


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
def test_without_a_driver_the_block_runs():
    ran = False
    with GpuSampler() as sampler:
        ran = True
    assert ran and sampler.readings == []


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU")
def test_a_real_device_is_read():
    with GpuSampler(interval_s=0.1) as sampler:
        eventually(lambda: sampler.readings)
    assert all(0 <= r.utilisation <= 1 for r in sampler.readings)
    assert all(r.memory_used_bytes > 0 for r in sampler.readings)


def test_readings_are_kept_one_by_one_and_the_library_is_let_go():
    reader = KnownReader()
    sampler = sample_until(reader, lambda readings: len(readings) >= 4)
    readings = sampler.readings
    assert [r.utilisation for r in readings[:4]] == [0.5, 1.0, 0.5, 1.0]
    assert [r.memory_used_bytes for r in readings[:2]] == [2**30, 2 * 2**30]
    assert reader.is_closed


def test_a_device_that_is_lost_ends_the_readings_and_not_the_block():
    reader = KnownReader(fails_at=2)
    sampler = sample_until(reader, lambda readings: reader.reads == 2)
    assert len(sampler.readings) == 2
    assert reader.is_closed


class NotSupported(Exception):
    """NVML's answer of a device without a JPEG engine."""


class KnownNvml:
    """NVML with one device that has a JPEG engine, and one that has none."""

    NVMLError = NVMLError_NotSupported = NVMLError_FunctionNotFound = NotSupported

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=40)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(used=1, total=2)

    def nvmlDeviceGetJpgUtilization(self, handle: int) -> list[int]:
        if handle == 1:
            raise NotSupported
        return [75, 167_000]


def test_jpeg_engine_is_read_where_the_device_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", KnownNvml())
    with_engine, without = NvmlReader().read(0.0)
    assert (with_engine.utilisation, with_engine.jpeg_utilisation) == (0.4, 0.75)
    assert (without.utilisation, without.jpeg_utilisation) == (0.4, None)


def test_window_has_the_mean_share_of_the_jpeg_engine() -> None:
    watcher = WindowWatcher.__new__(WindowWatcher)
    watcher._opened_s = 1.0
    readings = [GpuReading(at, 0, 0.5, 7, jpeg) for at, jpeg in ((0, 0.9), (1, 0.2), (2, 0.4))]
    figures = watcher.summarise_gpu(readings)
    assert figures == {
        "memory_bytes": 7.0,
        "utilisation": 0.5,
        "jpeg_utilisation": 0.3,
    }
    assert "jpeg_utilisation" not in watcher.summarise_gpu([GpuReading(1, 0, 0.5, 7)])
