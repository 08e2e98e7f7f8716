"""Files as reports name them: by package or archive, never by the machine's folders."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path


def make_shortener(folder: str) -> Callable[[str], str]:
    """A function that shortens the paths that code objects carry.

    Args:
        folder: the unzipped archive: `<folder>/offpath/handler/pipeline.py` becomes
            `handler/pipeline.py`.
    """
    paths = sysconfig.get_paths()
    own = str(Path(__file__).parents[2])
    # Site-packages lies inside the standard library's folder, and the archive may lie anywhere.
    roots = [
        f"{folder}/offpath",
        folder,
        paths["purelib"],
        paths["platlib"],
        paths["stdlib"],
        own,
    ]
    known: dict[str, str] = {}

    def shorten(file: str) -> str:
        if file not in known:
            known[file] = shorten_path(file, roots)
        return known[file]

    return shorten


def shorten_path(file: str, roots: Sequence[str]) -> str:
    """The path below the first root that it is in, else its last two parts."""
    for root in roots:
        if file.startswith(root.rstrip(os.sep) + os.sep):
            return file[len(root.rstrip(os.sep)) + 1 :]
    return os.sep.join(file.split(os.sep)[-2:]) if os.sep in file else file
