"""One folder of the spool per process, locked by flock while that process lives.

The kernel releases the lock when the process dies, for whatever reason. Pids are reused and start
times can be wrong, but a lock is reliable. The lock is on the folder itself: it cannot be deleted
separately from the segments it guards, and one descriptor guards any number of them. A process that
gets the lock of a dead process's folder adopts its segments.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from offpath.handler.prediction_log.segment import (
    ASIDE_SUFFIX,
    SealedSegment,
    list_segments,
)

TRIES = 100
# Each adopted folder takes a descriptor; further folders wait until some of these are done.
MAX_ADOPTED = 128
LOGGER = logging.getLogger(__name__)
# The descriptors that hold a lock, which a forked child must not keep.
_locks: set[int] = set()


def _close_in_child() -> None:
    for fd in _locks:
        os.close(fd)
    _locks.clear()


os.register_at_fork(after_in_child=_close_in_child)


@dataclass
class OwnerFolder:
    """A folder of segments whose lock this process holds."""

    path: Path
    lock_fd: int

    def __post_init__(self) -> None:
        _locks.add(self.lock_fd)

    @property
    def name(self) -> str:
        return self.path.name

    def release(self) -> None:
        """Removes the folder if it is empty, and then gives up the lock."""
        with contextlib.suppress(OSError):
            self.path.rmdir()
        _locks.discard(self.lock_fd)
        os.close(self.lock_fd)


def make_owner_name() -> str:
    """Returns `<host>-<pid>-<start>` for this process.

    In a container the pid is often the same after each restart, and a clock may be set back, so
    the start carries eight random digits: two owners never share a name.
    """
    host = re.sub(r"[^A-Za-z0-9.]+", ".", socket.gethostname()).strip(".") or "host"
    start_ms = time.time_ns() // 1_000_000
    return f"{host}-{os.getpid()}-{start_ms}x{secrets.token_hex(4)}"


def create_owner_folder(sink_folder: Path) -> OwnerFolder:
    """Makes and locks a folder for this process.

    Raises:
        OSError: The spool cannot be written, or its file system does not support flock.
    """
    for _ in range(TRIES):
        path = sink_folder / make_owner_name()
        path.mkdir(mode=0o700)
        try:
            folder = claim_owner_folder(path)
        except OSError:
            path.rmdir()
            raise
        # An adopter may claim it first, and removes it, because it is empty.
        if folder is not None:
            return folder
    raise OSError(errno.EAGAIN, "no folder could be locked", str(sink_folder))


def claim_owner_folder(path: Path) -> OwnerFolder | None:
    """Locks a folder; None if its owner lives or another adopter was faster."""
    lock_fd = _lock(path)
    if lock_fd is None:
        return None
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(path), os.fstat(lock_fd)):
            return OwnerFolder(path, lock_fd)
    os.close(lock_fd)  # an adopter has removed the folder, and perhaps its path is another's
    return None


def is_owner_alive(path: Path) -> bool:
    """Returns True if a process holds the lock, by trying a shared lock that is freed at once."""
    lock_fd = _lock(path, fcntl.LOCK_SH)
    if lock_fd is None:
        return path.exists()
    os.close(lock_fd)
    return False


def list_owner_folders(sink_folder: Path) -> list[Path]:
    """Lists the owner folders, including those of living processes."""
    try:
        entries = list(os.scandir(sink_folder))
    except FileNotFoundError:
        return []
    paths = [Path(one.path) for one in entries if one.is_dir(follow_symlinks=False)]
    return sorted(
        path for path in paths if not path.name.startswith(".") and path.suffix != ASIDE_SUFFIX
    )


class AdoptedFolders:
    """The folders of dead processes that this process has locked."""

    def __init__(self, sink_folder: Path) -> None:
        self.sink_folder = sink_folder
        self._folders: list[OwnerFolder] = []
        self._named: set[Path] = set()

    @property
    def paths(self) -> set[Path]:
        return {folder.path for folder in self._folders}

    def adopt(self) -> list[SealedSegment]:
        """Locks the folders of dead processes and returns their segments."""
        found: list[SealedSegment] = []
        for path in list_owner_folders(self.sink_folder):
            if len(self._folders) >= MAX_ADOPTED:
                break
            try:
                found.extend(self._adopt_folder(path))
            except OSError as error:
                self._name(path, f"cannot be adopted: {error}")
        return found

    def _adopt_folder(self, path: Path) -> list[SealedSegment]:
        folder = claim_owner_folder(path)
        if folder is None:
            return []
        segments: list[SealedSegment] = []
        try:
            segments = list_segments(path)
            self._set_aside(path, {segment.path for segment in segments})
        finally:
            if segments:
                self._folders.append(folder)
            else:
                folder.release()
        return segments

    def _set_aside(self, folder: Path, segments: set[Path]) -> None:
        """Moves entries that are not segments (FIFOs, links, other users' files) out of the way."""
        for path in sorted(set(folder.iterdir()) - segments):
            aside = folder.with_name(f"{folder.name}-{path.name}{ASIDE_SUFFIX}")
            try:
                path.rename(aside)
                self._name(path, f"is not a segment: set aside as {aside.name!r}")
            except OSError as error:
                self._name(path, f"is not a segment, and cannot be moved: {error}")

    def _name(self, path: Path, message: str) -> None:
        if path not in self._named:
            self._named.add(path)
            LOGGER.warning("prediction log: %r %s", str(path), message)

    def release_emptied(self, in_use: Container[Path]) -> None:
        """Removes the folders that no longer hold a segment."""
        for folder in list(self._folders):
            if folder.path not in in_use:
                self._folders.remove(folder)
                folder.release()

    def release(self) -> None:
        """Gives up all locks, so that others may adopt the remaining segments."""
        self.release_emptied(())


def count_bytes(sink_folder: Path, apart_from: Container[Path] = ()) -> int:
    total = 0
    for path in list_owner_folders(sink_folder):
        if path in apart_from:
            continue
        total += sum(segment.size_bytes for segment in list_segments(path))
    return total


def _lock(path: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """Returns a descriptor that holds the lock; None if the folder is locked, gone or not ours."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        # The path is gone, not a folder, or belongs to another user, who ships it.
        return None
    try:
        uids = {os.geteuid()}
        if os.geteuid() == 0:
            # Root may ship for the user who owns the spool.
            uids.add(path.parent.stat().st_uid)
        if os.fstat(fd).st_uid not in uids:
            os.close(fd)
            return None
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd
