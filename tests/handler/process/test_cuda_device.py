"""A worker's settings of its CUDA device."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from offpath.handler.process.worker_setup import CU_CTX_SCHED_BLOCKING_SYNC

# In a process of its own, because that of the tests has a context already.
PROGRAM = """
import ctypes, torch
from offpath.handler.process.worker_setup import use_device
torch.set_float32_matmul_precision("high")  # as TorchServe does
use_device(0)
torch.zeros(1, device="cuda").cpu()
flags, active = ctypes.c_uint(), ctypes.c_int()
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active)) == 0
print(active.value, flags.value & 7)
print(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_waiting_threads_sleep_and_fp32_is_fp32() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", str(CU_CTX_SCHED_BLOCKING_SYNC), "highest", "False"]
