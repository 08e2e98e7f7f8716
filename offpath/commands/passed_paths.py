"""Which failure of the system is a path that was passed and cannot be one."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from offpath.handler.errors import WrongOption

# Of the name, of what lies there, of who may: not of a disk that is full or broken.
UNFIT = {errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
UNFIT |= {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP}


def explain_path(error: OSError, words: Iterable[str]) -> WrongOption | None:
    """What is wrong with the path; None where it is none of these words: a bug.

    Args:
        words: of the command line. A folder above a path, or a file below it, is that path's.
    """
    if error.errno not in UNFIT or not isinstance(error.filename, str):
        return None
    path = Path(error.filename).absolute()
    for word in words:
        passed = Path(word.partition("=")[2] or word).absolute()
        if passed.is_relative_to(path) or path.is_relative_to(passed):
            return WrongOption(f"{error.filename!r}: {error.strerror}")
    return None
