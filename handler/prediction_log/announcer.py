"""Messages about trouble, said once and clearly instead of at every attempt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

REPEAT_S = 600.0


class Announcer:
    """Logs a kind of trouble when it begins, every ten minutes while it lasts, and when it ends."""

    def __init__(
        self,
        logger: logging.Logger,
        subject: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._subject = subject
        self._clock = clock
        self._said_at_s: dict[str, float] = {}

    def announce(self, kind: str, message: str) -> bool:
        """Logs `message` unless its kind was said in the last ten minutes; whether it did."""
        now_s = self._clock()
        said_at_s = self._said_at_s.get(kind)
        if said_at_s is not None and now_s - said_at_s < REPEAT_S:
            return False
        self._said_at_s[kind] = now_s
        self._logger.warning("%s: %s", self._subject, message)
        return True

    def recover(self, kinds: tuple[str, ...], message: str) -> None:
        """Says once that trouble of these kinds is over."""
        if any([self._said_at_s.pop(kind, None) is not None for kind in kinds]):
            self._logger.warning("%s: %s", self._subject, message)
