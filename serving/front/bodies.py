"""The private tmpfs folder that holds request bodies, and the cleaning up after a killed nginx."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import psutil

from offpath.errors import ExpectedError
from offpath.serving.process.tmp_folders import make_locked_folder, remove_dead_folders

SHM = Path("/dev/shm")
BODIES_PREFIX = "offpath-bodies-"
# Room for two batches of the largest bodies.
MIN_BODIES = 16


def make_folder(
    max_body_bytes: int, parent: Path = SHM, bodies: int = MIN_BODIES
) -> tuple[Path, int]:
    """Makes the folder with mode 0700, after removing the folders of doors that were killed.

    Args:
        bodies: number of the largest bodies that must fit. A body that finds no room later is
            answered 503.

    Returns:
        the folder, and a descriptor that locks it until it is closed or this process ends.

    Raises:
        ExpectedError: `parent` is not on a tmpfs, or has too little room.
    """
    if not is_tmpfs(parent):
        raise ExpectedError(
            f"{parent} is not on a tmpfs, so bodies would be written to a disk; mount a tmpfs and "
            "name it with --front-memory"
        )
    remove_dead_folders(BODIES_PREFIX, parent)
    free = free_bytes(parent)
    needed = bodies * max_body_bytes
    if free < needed:
        raise ExpectedError(
            f"{parent} has {free >> 20} MB free, but {bodies} bodies of {max_body_bytes >> 20} MB "
            f"need {needed >> 20} MB; make it larger (docker run --shm-size=2g, a Memory volume in "
            "Kubernetes), or lower max_request_size or --limit front-bodies"
        )
    return make_locked_folder(BODIES_PREFIX, parent)


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def is_tmpfs(folder: Path) -> bool:
    """Tells whether a folder lies on a tmpfs, by the kernel's list of mounts."""
    kinds = {Path(one.mountpoint): one.fstype for one in psutil.disk_partitions(all=True)}
    path = folder.resolve()
    return next((kinds[one] for one in (path, *path.parents) if one in kinds), "") == "tmpfs"


def remove_orphans(folder: Path, owners: Iterable[int]) -> list[str]:
    """Removes the bodies that no process of `owners` has open, and returns their names.

    nginx keeps the body of a request open until it has answered.
    """
    # The folder is listed first, so that a file made later is never compared with an older list
    # of open files.
    try:
        names = set(os.listdir(folder))
    except FileNotFoundError:  # the door makes it again
        return []
    for owner in owners:
        names -= _open_in(folder, owner)
    removed = []
    for name in names:
        try:
            os.unlink(folder / name)
        except FileNotFoundError:
            continue  # its request has just been answered
        removed.append(name)
    return removed


def _open_in(folder: Path, owner: int) -> set[str]:
    try:
        paths = [Path(file.path) for file in psutil.Process(owner).open_files()]
    except psutil.NoSuchProcess:
        return set()  # ended in the meantime
    return {path.name for path in paths if path.parent == folder}
