"""Temporary folders of servers, for their sockets and logs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from offpath.errors import ExpectedError

# The path of a Unix socket has at most 108 bytes; a worker's is <tmp>/.ts.sock.9000.
MAX_TMP_PATH_BYTES = 76
RUN_PREFIX = "offpath-run-"
# All that is left of a server that did not start.
LOGS = "logs"
# Descriptors that lock the folders of this process, until it ends or removes them.
LOCKS: dict[Path, int] = {}


class FilesRemoved(ExpectedError):
    """Something else has removed files of a running server."""


def check_exist(paths: Iterable[Path]) -> None:
    """Raises FilesRemoved for the first path that is not there."""
    for path in paths:
        if not os.path.lexists(path):
            raise FilesRemoved(f"something removed {path}; everything starts again")


def make_short_tmp_dir() -> Path:
    """Makes a temporary folder whose path leaves room for a Unix socket's name."""
    # Not RUNTIME_DIRECTORY or XDG_RUNTIME_DIR: /run is in memory, and archives are unpacked here.
    base = tempfile.gettempdir()
    is_short = len(base.encode()) < MAX_TMP_PATH_BYTES
    parent = Path(base if is_short else "/tmp")
    remove_dead_folders(RUN_PREFIX, parent)
    folder, LOCKS[folder] = make_locked_folder(RUN_PREFIX, parent)
    return folder


@contextlib.contextmanager
def tmp_dir() -> Iterator[Path]:
    """Yields a temporary folder; the next start removes that of a killed process."""
    folder = make_short_tmp_dir()
    try:
        yield folder
    finally:
        remove_folder(folder)


def make_locked_folder(prefix: str, parent: Path) -> tuple[Path, int]:
    """Makes a folder with mode 0700 that is locked while the returned descriptor is open."""
    # Renamed after it is locked, so that nobody finds it without a lock.
    new = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=parent))
    lock = lock_folder(new)
    return new.rename(parent / new.name[1:]), lock


def lock_folder(folder: Path) -> int:
    """Locks a folder until the returned descriptor is closed, also against systemd-tmpfiles."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def remove_dead_folders(prefix: str, parent: Path) -> None:
    """Removes this user's folders that no running process has locked, but not kept logs.

    The kernel drops a lock with its process, also after SIGKILL and across containers that share
    the folder, where the same process id belongs to several processes.
    """
    for folder in parent.glob(f"{prefix}*"):
        # Locked, removed in the meantime, or not a folder that this user may open.
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_uid == os.getuid() and os.listdir(folder) != [LOGS]:
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def remove_folder(folder: Path, keep: str | None = None) -> None:
    """Removes a temporary folder, or everything in it but one entry."""
    if folder in LOCKS:
        os.close(LOCKS.pop(folder))
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for entry in folder.iterdir():
        if entry.name == keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
