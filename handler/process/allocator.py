"""Keeps freed memory in the process, so that a batch reuses the pages of the one before.

By default glibc returns large blocks to the kernel as soon as they are freed, and every forward
pass takes thousands of page faults to get them back. With EfficientNet-Lite0 in eager fp32 this is
a third of a picture's time. The price is that a worker stays at its peak size: 100 to 150 MB more
in that case, and almost nothing with an engine that keeps its own memory (docs/research).
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
    """Raises glibc's thresholds for returning memory; call it once, before the model loads.

    Returns:
        False if the C library has no mallopt (musl); the worker is then slower.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        logger.warning("this C library has no mallopt: forward passes are slower by page faults")
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, ONE_GIB) and mallopt(M_TRIM_THRESHOLD, ONE_GIB))
