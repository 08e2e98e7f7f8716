"""Folders and variables of measurements: a run's folder, the cache, a child's environment."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def work_folder(is_kept: Callable[[], bool]) -> Iterator[Path]:
    """Yields a temporary folder; keeps it where something failed, because logs are in it."""
    folder = Path(tempfile.mkdtemp(prefix="offpath-bench-"))
    try:
        yield folder
    finally:
        if not is_kept():
            shutil.rmtree(folder, ignore_errors=True)


def cache_folder() -> Path:
    """Returns $OFFPATH_CACHE_DIR, else $XDG_CACHE_HOME/offpath, else ~/.cache/offpath."""
    explicit = os.environ.get("OFFPATH_CACHE_DIR")
    xdg = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(explicit if explicit else Path(xdg) / "offpath")


def child_environment() -> dict[str, str]:
    """Returns this process's environment for a child: unbuffered, no proxy before loopback."""
    proxies = {"http_proxy", "https_proxy", "all_proxy"}
    kept = {key: value for key, value in os.environ.items() if key.lower() not in proxies}
    return kept | {"PYTHONUNBUFFERED": "1"}
