"""The folder of the bodies: ours alone, in memory, with room; what a killed nginx leaves there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from offpath.handler.errors import ExpectedError

SHM = Path("/dev/shm")
MOUNTS = Path("/proc/self/mountinfo")
# The least room: two batches of the largest bodies.
LEAST_BODIES = 16


def make_folder(
    max_body_bytes: int, parent: Path = SHM, bodies: int = LEAST_BODIES
) -> Path:
    """Makes the folder, mode 0700.

    Args:
        bodies: how many of the largest must have room; one that finds none later gets 503.

    Raises:
        ExpectedError: `parent` is no tmpfs, or has too little room; with the cure.
    """
    if not is_tmpfs(parent):
        raise ExpectedError(
            f"{parent} is no tmpfs: bodies would be written to a disk; mount one, or name one "
            "with --front-memory"
        )
    free = free_bytes(parent)
    needed = bodies * max_body_bytes
    if free < needed:
        raise ExpectedError(
            f"{parent} has {free >> 20} MB free; {bodies} bodies of {max_body_bytes >> 20} "
            f"MB need {needed >> 20}: give it more (docker run --shm-size=2g, a Memory volume in "
            "Kubernetes), or lower max_request_size or --front-bodies"
        )
    return Path(tempfile.mkdtemp(prefix="offpath-", dir=parent))


def free_bytes(folder: Path) -> int:
    """What can still be written below a folder."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def is_tmpfs(folder: Path) -> bool:
    """Whether a folder lies on a tmpfs, by the kernel's list of mounts."""
    try:
        device = folder.stat().st_dev
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return False
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        # man 5 proc: id, parent, major:minor, ... - type source options
        fields, _, kind = line.partition(" - ")
        if fields.split()[2] == wanted:
            return kind.split()[0] == "tmpfs"
    return False


def remove_orphans(folder: Path, owners: Iterable[int]) -> list[str]:
    """Removes the bodies that no process of `owners` has open; nginx holds a request's open.

    Returns:
        the names.
    """
    # Listed first: a file made later is not judged by what was open before.
    names = set(os.listdir(folder))
    for owner in owners:
        names -= _open_in(folder, owner)
    removed = []
    for name in names:
        try:
            os.unlink(folder / name)
        except FileNotFoundError:
            continue  # its request has just ended
        removed.append(name)
    return removed


def remove_folder(folder: Path) -> None:
    """Removes the folder with whatever is in it."""
    shutil.rmtree(folder, ignore_errors=True)


def _open_in(folder: Path, owner: int) -> set[str]:
    """Names of the folder's files that a process has open."""
    names = set()
    try:
        for number in os.listdir(f"/proc/{owner}/fd"):
            try:
                target = os.readlink(f"/proc/{owner}/fd/{number}")
            except FileNotFoundError:
                continue  # closed meanwhile
            parent, _, name = target.rpartition("/")
            if parent == str(folder):
                names.add(name)
    except (FileNotFoundError, ProcessLookupError):
        pass  # ended meanwhile
    return names
