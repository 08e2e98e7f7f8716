"""SIGTERM and Ctrl-C as exceptions, once: what is being stopped is stopped to the end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Terminated(BaseException):
    """SIGTERM came: stop and exit 0. Not an Exception, so that nobody takes it for an error."""


@contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Raises Terminated at SIGTERM and KeyboardInterrupt at Ctrl-C; later signals are ignored.

    A second Ctrl-C would otherwise interrupt the stop itself and leave processes behind; the
    stop takes seconds and has a limit of its own.
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
