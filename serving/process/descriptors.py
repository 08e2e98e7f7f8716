"""Lets a supervisor wait while the kernel opens no more files for it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAUSE_S = 1.0


@contextmanager
def awaiting_descriptors(say: Callable[[str], None]) -> Iterator[None]:
    """Ends the block, but not the process, if a descriptor is missing; the caller tries again."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        say(f"waiting until files can be opened: {error}")
        time.sleep(PAUSE_S)
