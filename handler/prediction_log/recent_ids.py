"""Recently recorded event ids, in memory that all workers of a host share.

TorchServe can run a batch twice: when it scales down, it gives the jobs of a worker that it is
about to kill to another worker (BatchAggregator.sendError: "Data message can be handled by other
workers"), although the first worker may have recorded them already. The second worker must see that
without I/O.

The table maps 64-bit hashes directly to slots of a mapped file, so a look-up is one memory access.
An id is forgotten when a later id falls into its slot, after some ten thousand records. Ids are
added just after the record was written: a kill in between makes a duplicate, where the other order
would lose a record.
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
    """The table of a sink; all its processes must pass the same folder.

    Raises:
        OSError: There is no room for the table, or the folder cannot be written.
    """

    def __init__(self, sink_folder: Path) -> None:
        fd = os.open(sink_folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _allocate(fd)
            self._memory = mmap.mmap(fd, SLOTS * SLOT_BYTES)
        finally:
            os.close(fd)
        self._slots = memoryview(self._memory).cast("Q")

    def has(self, event_id: str) -> bool:
        """Returns True if the id was added and not forgotten since; never for an empty id."""
        value = _hash(event_id)
        return event_id != "" and self._slots[value % SLOTS] == value

    def add(self, event_id: str) -> None:
        value = _hash(event_id)
        self._slots[value % SLOTS] = value


def _allocate(fd: int) -> None:
    """Allocates all blocks of the file: a hole on a full disk would end the worker by SIGBUS."""
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        os.posix_fallocate(fd, 0, SLOTS * SLOT_BYTES)
    except OSError:
        # An incomplete file is not mapped by anyone; remove the partial blocks from the full disk.
        os.ftruncate(fd, 0)
        raise
    finally:
        # close() would not release it: the mapping holds a duplicate of the descriptor.
        fcntl.flock(fd, fcntl.LOCK_UN)


def _hash(event_id: str) -> int:
    digest = hashlib.blake2b(event_id.encode("utf-8", "replace"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")
