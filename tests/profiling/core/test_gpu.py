"""GPU sampling: with the real library here, and with known devices where it reads them."""

from __future__ import annotations

import importlib.util

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
