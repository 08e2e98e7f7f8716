"""Announces failures in a worker's log, without a line for each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

REPEAT_S = 600.0
# Begins each announcement, by which `offpath serve` finds the first of them in a log.
WARNS = "offpath warns: "


class Announcer:
    """Logs a kind of failure when it begins, every ten minutes while it lasts, and when it ends.

    Args:
        subject: first words of every message.
    """

    def __init__(
        self,
        logger: logging.Logger,
        subject: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._subject = subject
        self._clock = clock
        self._logged_at_s: dict[str, float] = {}

    def announce(self, kind: str, message: str) -> bool:
        """Logs `message` unless its kind was logged in the last ten minutes.

        Returns:
            True if the message was logged.
        """
        now_s = self._clock()
        logged_at_s = self._logged_at_s.get(kind)
        if logged_at_s is not None and now_s - logged_at_s < REPEAT_S:
            return False
        self._logged_at_s[kind] = now_s
        self._logger.warning("%s%s: %s", WARNS, self._subject, message)
        return True

    def recover(self, kinds: tuple[str, ...], message: str) -> None:
        """Logs `message` if a failure of these kinds was announced before."""
        if any([self._logged_at_s.pop(kind, None) is not None for kind in kinds]):
            self._logger.warning("%s%s: %s", WARNS, self._subject, message)
