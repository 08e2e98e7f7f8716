"""A worker's settings of its CUDA device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from offpath.handler.process.worker_setup import CU_CTX_SCHED_BLOCKING_SYNC, use_device


@pytest.fixture(autouse=True)
def keep_precision() -> Iterator[None]:
    product = torch.get_float32_matmul_precision()
    convolution = torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(product)
    torch.backends.cudnn.allow_tf32 = convolution


def test_fp32_on_a_device_is_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    torch.set_float32_matmul_precision("high")  # as TorchServe does
    torch.backends.cudnn.allow_tf32 = True  # torch's default
    use_device(0, waits_asleep=False)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_device_keeps_the_flag_that_lets_waiting_threads_sleep() -> None:
    # In a process of its own, because this one has a context already.
    code = (
        "import ctypes, torch\n"
        "from offpath.handler.process.worker_setup import use_device\n"
        "use_device(0)\n"
        "torch.zeros(1, device='cuda').cpu()\n"
        "flags, active = ctypes.c_uint(), ctypes.c_int()\n"
        "driver = ctypes.CDLL('libcuda.so.1')\n"
        "state = driver.cuDevicePrimaryCtxGetState\n"
        "assert state(0, ctypes.byref(flags), ctypes.byref(active)) == 0\n"
        "print(active.value, flags.value & 7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", str(CU_CTX_SCHED_BLOCKING_SYNC)]
