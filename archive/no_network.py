"""Refuses the network to a model's own code: a worker must not need it either."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

REFUSAL = (
    "it opens {}, and an archive holds all that its workers need; make the model without pretrained"
    " weights, for instance with weights=None, because the checkpoint's replace them"
)


class NetworkRefused(Exception):
    """Code has tried to reach another host."""


class _Guard:
    """An audit hook, which Python cannot remove again, and whether it refuses."""

    is_installed = False
    refuses = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.refuses:
            return
        if event in ("urllib.Request", "socket.getaddrinfo"):
            raise NetworkRefused(REFUSAL.format(arguments[0]))
        # The address of a Unix socket is no tuple.
        if event == "socket.connect" and isinstance(arguments[1], tuple):
            raise NetworkRefused(REFUSAL.format(arguments[1][0]))


_guard = _Guard()


@contextlib.contextmanager
def network_refused() -> Iterator[None]:
    """Raises NetworkRefused where Python code of this process connects to a host."""
    if not _guard.is_installed:
        sys.addaudithook(_guard)
        _guard.is_installed = True
    _guard.refuses = True
    try:
        yield
    finally:
        _guard.refuses = False
