"""Keeps freed memory in the process, so that a batch reuses the pages of the one before.

By default glibc returns large blocks to the kernel as soon as they are freed, and every forward
pass then takes thousands of page faults to get them back: with EfficientNet-Lite0 in eager fp32 a
third of a picture's time. The price: a worker stays at its peak size, 100 to 150 MB more there and
next to nothing with an engine that keeps its own memory (docs/research).
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
