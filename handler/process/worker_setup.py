"""Sets up a worker's process before the model loads: its CUDA device and its memory."""

from __future__ import annotations

import ctypes
import logging

import torch

logger = logging.getLogger(__name__)

CU_CTX_SCHED_BLOCKING_SYNC = 4
# malloc.h; man 3 mallopt.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
ONE_GIB = 1 << 30


def use_device(index: int) -> None:
    """Makes a CUDA device the current one of the calling thread, and fp32 mean fp32 on it.

    Threads sleep while they wait for the device, instead of asking in a loop.

    On a device that is not the current one, a captured graph may be empty and replay old answers
    (pytorch issues 87894 and 87794).

    Args:
        index: 1 stands for `cuda:1`.
    """
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


def keep_freed_memory() -> bool:
    """Keeps freed memory in the process, so that a batch reuses the pages of the one before.

    By default glibc returns large blocks to the kernel as soon as they are freed, and every forward
    pass takes thousands of page faults to get them back. With EfficientNet-Lite0 in eager fp32 this
    is a third of an image's time. The price is that a worker stays at its peak size: 100 to 150 MB
    more in that case, and almost nothing with an engine that keeps its own memory (docs/research).
    Call it once, before the model loads.

    Returns:
        False if the C library has no mallopt (musl); the worker is then slower.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        logger.warning("this C library has no mallopt: forward passes are slower by page faults")
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, ONE_GIB) and mallopt(M_TRIM_THRESHOLD, ONE_GIB))
