"""Finds requests that cannot be answered in time, so that nobody decodes them.

A request's time begins when its body has arrived, and ends after the milliseconds that a header
leaves, or after the archive's setting. Headers can say when it began. Anybody may have written
them, but they can only make a request older: a time in the future counts as now, and so does none.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offpath.handler.errors import DeadlineExceeded

# The second is Envoy's.
TIMEOUT_HEADERS = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
# From the front door (nginx.conf), from our own servers without one (archived_handler.py), and from
# other proxies.
START_HEADERS = ("x-offpath-arrived", "x-offpath-received", "x-request-start")
TIMEOUT = re.compile(r"[0-9]{1,9}")
# Seconds with a fraction, or milliseconds.
START = re.compile(r"(?:t=)?(?:([0-9]{10}\.[0-9]{1,6})|([0-9]{13}))")
# As for TCP's retransmission timer: https://www.rfc-editor.org/rfc/rfc6298
MEAN_SHARE, DEVIATION_SHARE, DEVIATIONS = 1 / 8, 1 / 4, 2


class Deadlines:
    """Judges the requests of each batch by the time that recent batches took.

    In a full queue the oldest request is always about to be late. If only requests were refused
    that are late already, all others would become late while they are decoded.

    Args:
        default_ms: for requests without a header; 0 is no limit.
        most_ms: the most that a header may ask for; 0 stands for `default_ms`.
        clock: seconds since 1970, as in START_HEADERS.
    """

    def __init__(
        self, default_ms: int, most_ms: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._default_ms = default_ms or math.inf
        self._most_ms = most_ms or self._default_ms
        self._clock = clock
        self._mean_s = self._deviation_s = 0.0

    def refuse_late(
        self,
        rows: Sequence[Mapping[str, Any]],
        headers: Sequence[Mapping[str, Any]],
    ) -> list[Mapping[str, Any]]:
        """Returns the rows of a batch, with an error as the body of those that would be late."""
        now_s = self._clock()
        refused = [self._judge(one, now_s) for one in headers]
        return [{"body": error} if error else row for error, row in zip(refused, rows)]

    def learn(self, took_s: float, is_answered: bool) -> None:
        """Takes the seconds of a batch.

        Args:
            is_answered: False if every request was refused. That shrinks the expected time, because
                after one slow batch nothing else would.
        """
        if not is_answered:
            self._mean_s *= 1 - MEAN_SHARE
            self._deviation_s *= 1 - DEVIATION_SHARE
            return
        error_s = took_s - self._mean_s
        self._mean_s += MEAN_SHARE * error_s
        self._deviation_s += DEVIATION_SHARE * (abs(error_s) - self._deviation_s)

    def _judge(
        self, headers: Mapping[str, Any], now_s: float
    ) -> DeadlineExceeded | None:
        allowed_ms, began_s = math.inf, now_s
        for name, value in headers.items():
            lower = name.lower()
            if lower in TIMEOUT_HEADERS:
                if isinstance(value, str) and TIMEOUT.fullmatch(value):
                    allowed_ms = min(allowed_ms, int(value))
            elif lower in START_HEADERS and isinstance(value, str):
                began_s = min(began_s, read_start(value))
        if allowed_ms == math.inf:
            allowed_ms = self._default_ms
        else:
            allowed_ms = min(allowed_ms, self._most_ms)
        waited_ms = 1e3 * (now_s - began_s)
        expected_ms = 1e3 * (self._mean_s + DEVIATIONS * self._deviation_s)
        if waited_ms + expected_ms < allowed_ms:
            return None
        return DeadlineExceeded(
            f"the request had {allowed_ms} ms and has waited {waited_ms:.0f}; an answer takes"
            f" another {expected_ms:.0f}"
        )


def read_start(text: str) -> float:
    """Reads the value of a header that says when a request began; infinity if it is malformed."""
    found = START.fullmatch(text)
    if found is None:
        return math.inf
    return float(found[1]) if found[1] else int(found[2]) / 1e3
