"""Turns the first SIGTERM or Ctrl-C into an exception and ignores later ones."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Terminated(BaseException):
    """SIGTERM has arrived: stop and exit with 0. Not an Exception, because it is no error."""


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raises Terminated at SIGTERM and KeyboardInterrupt at Ctrl-C; later signals are ignored.

    A second Ctrl-C would interrupt the stop and leave processes behind. The stop takes seconds and
    has its own time limit.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
