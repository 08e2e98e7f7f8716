"""Refuses the network to a model's own code: a worker must not need it either."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_guarded: list[bool] = []  # empty before the hook is added, which Python cannot remove


class NetworkRefused(Exception):
    """Code has tried to reach another host."""


@contextlib.contextmanager
def network_refused() -> Iterator[None]:
    """Raises NetworkRefused where Python code of this process opens a URL or looks up a host."""
    if not _guarded:
        sys.addaudithook(_refuse)
    _guarded[:] = [True]
    try:
        yield
    finally:
        _guarded[:] = [False]


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("urllib.Request", "socket.getaddrinfo") and _guarded[0]:
        raise NetworkRefused(
            f"it opens {arguments[0]}, and an archive holds all that its workers need; make the "
            "model without pretrained weights (weights=None), which the checkpoint's replace"
        )
