"""The folder that a run builds in."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def work_folder(is_kept: Callable[[], bool]) -> Iterator[Path]:
    """A temporary folder that stays when something failed: its log is in there."""
    folder = Path(tempfile.mkdtemp(prefix="offpath-bench-"))
    try:
        yield folder
    finally:
        if not is_kept():
            shutil.rmtree(folder, ignore_errors=True)
