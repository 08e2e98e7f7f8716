"""Refuses the network to a model's own code: a worker must not need it either."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

LOOKUPS = ("urllib.Request", "socket.getaddrinfo", "socket.gethostbyname")
_guarded: list[bool] = []  # empty before the hook is added, which Python cannot remove


class NetworkRefused(Exception):
    """Code has tried to reach another host."""


@contextlib.contextmanager
def network_refused() -> Iterator[None]:
    """Raises NetworkRefused where this process's Python code looks up a host or connects to one."""
    if not _guarded:
        sys.addaudithook(_refuse)
    _guarded[:] = [True]
    try:
        yield
    finally:
        _guarded[:] = [False]


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    # A socket's address is a tuple, that of a Unix socket a path.
    is_remote = event in LOOKUPS or event == "socket.connect" and isinstance(arguments[1], tuple)
    if is_remote and _guarded[0]:
        where = arguments[1][0] if event == "socket.connect" else arguments[0]
        raise NetworkRefused(
            f"it opens {where}, and an archive holds all that its workers need; make the "
            "model without pretrained weights (weights=None), which the checkpoint's replace"
        )
