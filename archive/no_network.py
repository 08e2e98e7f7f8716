"""Keeps a model's own code from the network, which a worker must not need, and from secrets.

This stops accidents and simple theft. It is no sandbox: such code has the rights of its user.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

LOOKUPS = (
    *("urllib.Request", "socket.getaddrinfo", "socket.gethostbyname"),
    *("socket.gethostbyaddr", "socket.getnameinfo"),
)
# The audit events of a socket whose second argument is an address.
ADDRESSED = ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind")
# The variables that code of a stranger needs; others may hold secrets.
PASSED = (
    *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "LANG", "LC_ALL"),
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "COLUMNS"),
)
_guarded: list[bool] = []  # empty before the hook is added, which Python cannot remove


class NetworkRefused(Exception):
    """Code has tried to reach another host."""


@contextlib.contextmanager
def network_refused() -> Iterator[None]:
    """Raises NetworkRefused where this process's Python code looks up a host or sends to one."""
    if not _guarded:
        sys.addaudithook(_refuse)
    _guarded[:] = [True]
    try:
        yield
    finally:
        _guarded[:] = [False]


@contextlib.contextmanager
def environment_cleared() -> Iterator[None]:
    """Removes all variables but PASSED from this process's environment for a while."""
    before = dict(os.environ)
    try:
        for name in before.keys() - {*PASSED}:
            del os.environ[name]
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    # A socket's address is a tuple, that of a Unix socket a path.
    is_addressed = event in ADDRESSED
    is_remote = event in LOOKUPS or is_addressed and isinstance(arguments[1], tuple)
    if is_remote and _guarded[0]:
        where = arguments[1][0] if is_addressed else arguments[0]
        raise NetworkRefused(
            f"it opens {where}, and an archive holds all that its workers need; make the "
            "model without pretrained weights (weights=None), which the checkpoint's replace"
        )
