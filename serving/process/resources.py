"""Lets a supervisor wait while the kernel gives it no more files, processes or memory."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAUSE_S = 1.0
WHAT = {
    errno.EMFILE: "files can be opened",
    errno.ENFILE: "files can be opened",
    errno.EAGAIN: "processes can be started",
    errno.ENOMEM: "there is memory",
}


@contextmanager
def awaiting_resources(say: Callable[[str], None]) -> Iterator[None]:
    """Ends the block, but not the process, if a resource is missing; the caller tries again."""
    try:
        yield
    except OSError as error:
        if error.errno not in WHAT:
            raise
        say(f"waiting until {WHAT[error.errno]}: {error}")
        time.sleep(PAUSE_S)
