"""Temporary folders of servers, for their sockets and logs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

# The path of a Unix socket has at most 108 bytes; a worker's is <tmp>/.ts.sock.9000.
MAX_TMP_PATH_BYTES = 80


def make_short_tmp_dir() -> Path:
    """Makes a temporary folder whose path leaves room for a Unix socket's name."""
    base = tempfile.gettempdir()
    is_short = len(base.encode()) < MAX_TMP_PATH_BYTES
    return Path(tempfile.mkdtemp(prefix="offpath-", dir=base if is_short else "/tmp"))


def remove_folder(folder: Path, keep: str | None = None) -> None:
    """Removes a temporary folder, or everything in it but one entry."""
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
