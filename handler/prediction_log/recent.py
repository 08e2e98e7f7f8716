"""Event ids that a worker of this host has recorded lately, in memory that all of them share.

TorchServe can run a batch twice: when it scales down, it gives the jobs of a worker that it is
about to kill to another one (BatchAggregator.sendError: "Data message can be handled by other
workers"), although the first may have recorded them already. The second must see that, without I/O.

A direct-mapped table of 64-bit hashes in a mapped file: a look-up is a memory access. An id is
forgotten when a later one falls into its slot, after some ten thousand records. It is noted just
after the write that it tells of: a kill in these microseconds makes a double, where the other order
would make a loss.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from pathlib import Path

FILE_NAME = "recent-ids"
SLOTS = 1 << 17
SLOT_BYTES = 8


class RecentIds:
    """The table; give every process of a sink the same folder."""

    def __init__(self, sink_folder: Path) -> None:
        """Maps the table, which is made on first use.

        Raises:
            OSError: There is no room for it, or the folder cannot be written.
        """
        fd = os.open(sink_folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _allocate(fd)
            self._memory = mmap.mmap(fd, SLOTS * SLOT_BYTES)
        finally:
            os.close(fd)
        self._slots = memoryview(self._memory).cast("Q")

    def has(self, event_id: str) -> bool:
        """Whether the id was noted and not forgotten since; never for an empty id."""
        value = _hash(event_id)
        return event_id != "" and self._slots[value % SLOTS] == value

    def add(self, event_id: str) -> None:
        """Notes an id whose record is in the spool."""
        value = _hash(event_id)
        self._slots[value % SLOTS] = value


def _allocate(fd: int) -> None:
    """Gives the file all its blocks: a hole in it on a full disk would end the worker by SIGBUS."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        os.posix_fallocate(fd, 0, SLOTS * SLOT_BYTES)
    except OSError:
        # Not complete, so nobody has mapped it: leave no half of it on a disk that is full.
        os.ftruncate(fd, 0)
        raise
    finally:
        # Not left to close(): the mapping holds a duplicate of the descriptor, and so the lock.
        fcntl.flock(fd, fcntl.LOCK_UN)


def _hash(event_id: str) -> int:
    digest = hashlib.blake2b(event_id.encode("utf-8", "replace"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")
