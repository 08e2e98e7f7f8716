"""Tells whether processes run, and lets them open nothing for a while."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from resource import RLIMIT_NOFILE

import psutil

from offpath.serving.process.processes import is_running

# Standard input, output and errors stay in use, so that closing others gives no room.
LEAST = 3


def is_alive(pid: int) -> bool:
    """Returns whether a process runs; a zombie does not."""
    try:
        return is_running(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


@contextmanager
def no_new_descriptors(*pids: int, least: int = LEAST) -> Iterator[None]:
    """Lets processes open no descriptor from number `least` on during the block (EMFILE)."""
    limits = {pid: resource.prlimit(pid, RLIMIT_NOFILE) for pid in pids}
    for pid, (_, hard) in limits.items():
        resource.prlimit(pid, RLIMIT_NOFILE, (least, hard))
    try:
        yield
    finally:
        for pid, limit in limits.items():
            resource.prlimit(pid, RLIMIT_NOFILE, limit)
