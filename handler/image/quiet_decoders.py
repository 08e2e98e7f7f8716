"""Turns off what the decoders say of a client's data; what is wrong is in the reply."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import re
import warnings
from pathlib import Path

MAPPED_LIBTIFF = re.compile(r" (/\S*libtiff\S*)$", re.MULTILINE)


def silence_decoders() -> None:
    """For a server, once at start.

    Each warning is a line on the log, and the first of a kind opens the source file that it quotes.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
    # npy headers: written by Python 2; with a backslash, which Python 3.12 takes for an escape.
    warnings.filterwarnings("ignore", message=r"Reading `\.npy`")
    warnings.filterwarnings("ignore", category=SyntaxWarning, module="<unknown>")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    _silence_libtiff()


def _silence_libtiff() -> None:
    """libtiff writes its errors to standard error, past Python; Pillow silences its warnings alone.

    The library is looked for among what Pillow has loaded: a wheel's has a hash in its name.
    """
    with contextlib.suppress(OSError, AttributeError):
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        for path in set(MAPPED_LIBTIFF.findall(maps)):
            ctypes.CDLL(path).TIFFSetErrorHandler(None)
