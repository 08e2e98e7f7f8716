"""Makes a worker's CUDA device the current one, before anything else of the process uses CUDA."""

from __future__ import annotations

import ctypes
import logging

import torch

logger = logging.getLogger(__name__)

CU_CTX_SCHED_BLOCKING_SYNC = 4


def use_device(index: int, waits_asleep: bool = True) -> None:
    """Makes a CUDA device the current one of the calling thread, and fp32 mean fp32 on it.

    On a device that is not the current one, a captured graph may be empty and replay old answers
    (pytorch issues 87894 and 87794).

    Args:
        index: 1 stands for `cuda:1`.
        waits_asleep: threads sleep while they wait for the device, instead of asking in a loop.
    """
    if waits_asleep:
        _wait_asleep(index)
    torch.cuda.set_device(index)
    # TorchServe allows matrix products in TF32 when it is imported, and torch convolutions.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def _wait_asleep(index: int) -> None:
    """Sets a flag of the device, which torch does not expose, before the device has a context."""
    device = ctypes.c_int()
    try:
        # The driver's library has one name for all versions of CUDA.
        driver = ctypes.CDLL("libcuda.so.1")
        status = (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), index)
            or driver.cuDevicePrimaryCtxSetFlags_v2(device, CU_CTX_SCHED_BLOCKING_SYNC)
        )
    except (OSError, AttributeError) as error:
        status = error
    if status:
        logger.warning("waiting for cuda:%d takes a core: %s", index, status)
