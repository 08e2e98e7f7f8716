"""The tests' way to wait: for a state, never for a time."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import time
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")
# What a state may take on a machine that is many times slower than a quiet one. tests/mutations.py
# waits in vain on purpose, and so for less.
MAX_S = float(os.environ.get("OFFPATH_TEST_WAIT_S", "120"))
LOOK_S = 0.05


def eventually(look: Callable[[], T], timeout_s: float = MAX_S) -> T:
    """Calls `look` until it returns something true, and returns that.

    Raises:
        AssertionError: nothing true came in time; the message has the source and the last result.
    """
    deadline_s = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline_s:
            source = inspect.getsource(look).strip()
            raise AssertionError(f"not within {timeout_s:.0f} s: {source} ({found!r})")
        time.sleep(LOOK_S)
    return found


def in_event_loop(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """Runs a test in an event loop, for MAX_S at most."""

    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), MAX_S))

    return run
