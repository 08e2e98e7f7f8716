"""Keeps freed memory in the process, so that a batch reuses the pages of the one before.

By default glibc returns large blocks to the kernel as soon as they are freed, and every forward
pass then takes thousands of page faults to get them back: with EfficientNet-Lite0 6,000 to 10,000
a picture, 12 to 19 ms of its 41 to 48. The price: a worker stays at its peak size (30 MB more).
What loading a model leaves behind is no peak worth keeping: it is given back once.
"""

from __future__ import annotations

import ctypes
import logging

logger = logging.getLogger(__name__)

# malloc.h; man 3 mallopt.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
ONE_GIB = 1 << 30


def keep_freed_memory() -> bool:
    """Raises glibc's thresholds for giving memory back; call once, before the model loads.

    Returns:
        False where the C library has no mallopt (musl): all works, only slower.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        logger.warning("no mallopt in this C library: forward passes pay page faults")
        return False
    return bool(
        mallopt(M_MMAP_THRESHOLD, ONE_GIB) and mallopt(M_TRIM_THRESHOLD, ONE_GIB)
    )


def give_back_freed_memory() -> bool:
    """Returns what is free now to the kernel; call once, between loading and the warm-up.

    A model that is converted to another precision leaves its copies behind, 100 MB of ResNet-50.

    Returns:
        False where nothing was given back, or the C library has no malloc_trim (musl).
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(malloc_trim(ctypes.c_size_t(0)))
