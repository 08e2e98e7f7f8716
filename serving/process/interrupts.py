"""Handles SIGTERM, Ctrl-C and SIGHUP, whose defaults would end a server without draining."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)
REPEAT_S = 0.05


class Terminated(BaseException):
    """SIGTERM has arrived: stop and exit with 0. Not an Exception, because it is no error."""


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raises Terminated at SIGTERM and KeyboardInterrupt at Ctrl-C; later signals are ignored.

    A second Ctrl-C would interrupt the stop and leave processes behind. The stop takes seconds and
    has its own time limit.

    Python drops an exception that reaches a destructor or the callback of a weak reference, which
    each import has. So the signal then comes again.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def repeat(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, (Terminated, KeyboardInterrupt)):
            show_dropped(dropped)
            return
        is_term = isinstance(dropped.exc_value, Terminated)
        number = signal.SIGTERM if is_term else signal.SIGINT
        signal.signal(number, handle)
        # Later, because what this function raises is dropped too.
        threading.Timer(REPEAT_S, os.kill, [os.getpid(), number]).start()

    show_dropped, sys.unraisablehook = sys.unraisablehook, repeat
    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        sys.unraisablehook = show_dropped
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def holding_signals() -> Iterator[None]:
    """Lets SIGTERM and Ctrl-C wait for the end of the block.

    They are not blocked in the kernel, because processes that the block starts would inherit that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals interrupt only the main thread
        return
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: held.append(number))
        for number in SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


class Hangup:
    """Remembers a SIGHUP that nobody has followed yet.

    SIGHUP also comes when the terminal is closed. Then the server ends as at SIGTERM.
    """

    def __init__(self) -> None:
        self._has_come = False
        self._terminals = [number for number in (1, 2) if os.isatty(number)]

    def take(self) -> bool:
        has_come, self._has_come = self._has_come, False
        return has_come

    def note(self, number: int, frame: FrameType | None) -> None:
        closed = [number for number in self._terminals if not os.isatty(number)]
        if not closed:
            self._has_come = True
            return
        for number in closed:
            # What is printed during the end would fail there.
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        signal.raise_signal(signal.SIGTERM)


@contextmanager
def noting_hangup() -> Iterator[Hangup]:
    """Makes SIGHUP end nothing; the caller follows it when it has time."""
    hangup = Hangup()
    before = signal.signal(signal.SIGHUP, hangup.note)
    try:
        yield hangup
    finally:
        signal.signal(signal.SIGHUP, before)
