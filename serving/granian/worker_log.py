"""The log of a worker: standard error, in the layout that server_log.py reads."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

# Least seconds between two messages of one line of code.
PAUSE_S = 1.0


class Pacer(logging.Filter):
    """Lets a line of code log once per second, because clients or a sick model could cause many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # Not by the text, which may contain what a client sent.
        self._logged_s: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tells whether a record is written."""
        place, now_s = (record.pathname, record.lineno), self._clock()
        is_due = now_s - self._logged_s.get(place, -math.inf) >= PAUSE_S
        if is_due:
            self._logged_s[place] = now_s
        return is_due


def start_logging(worker: str) -> None:
    """Writes warnings and errors to standard error."""
    logging.basicConfig(
        format=f"%(asctime)s [%(levelname)s] {worker} %(name)s - %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    # It only says that packages are missing which no archive of ours needs, and would be the last
    # line before the end of a worker that was killed.
    logging.getLogger("ts.torch_handler.base_handler").setLevel(logging.ERROR)


def pace_logging() -> None:
    """Limits the lines from now on. While a model loads, one line of code may have much to say."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(Pacer())
