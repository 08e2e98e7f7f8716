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

from offpath.handler.errors import DeadlineExceeded, ItemError
from offpath.handler.request.body_from_front_door import Row
from offpath.handler.wire_names import ARRIVED_HEADER, RECEIVED_HEADER

# True: milliseconds that are left; the second is Envoy's. False: when the request began, from the
# front door (nginx.conf), from our servers without one (archived_handler.py) or from other proxies.
HEADERS = {
    "x-request-timeout-ms": True,
    "x-envoy-expected-rq-timeout-ms": True,
    ARRIVED_HEADER: False,
    RECEIVED_HEADER: False,
    "x-request-start": False,
}
TIMEOUT = re.compile(r"[0-9]{1,9}")
# Seconds with a fraction, or milliseconds.
START = re.compile(r"(?:t=)?(?:([0-9]{10}\.[0-9]{1,6})|([0-9]{13}))")
# Share of the difference by which a shorter batch lowers the expected time; a longer one raises it
# at once, up to MAX_RAISED. A mean would be too low for half of the batches.
FORGOTTEN = 1 / 32
# One batch raises the expected time at most by this factor: a single costly image says little about
# the next batches, and of several costly batches in a row the third or fourth is believed.
MAX_RAISED = 2
# A request that has waited for less than the rest of its time is always tried. Otherwise one slow
# batch could make all later ones look hopeless, and nothing would show that they are not.
MAX_EXPECTED = 0.9


class Deadlines:
    """Judges the requests of each batch by the time that recent batches took.

    In a full queue the oldest request is always about to be late. If only requests were refused
    that are late already, all others would become late while they are decoded.

    Args:
        max_ms: a header can only ask for less; 0 is no limit.
        clock: seconds since 1970, as in the headers.
    """

    def __init__(self, max_ms: int, clock: Callable[[], float] = time.time) -> None:
        self._max_ms = max_ms or math.inf
        self._clock = clock
        self._expected_ms = 0.0

    def refuse_late(
        self,
        rows: Sequence[Row | ItemError],
        headers: Sequence[Mapping[str, Any]],
    ) -> list[Row | ItemError]:
        """Returns the rows of a batch, with an error in place of those that would be late."""
        now_s = self._clock()
        refused = [self._judge(one, now_s) for one in headers]
        return [error or row for error, row in zip(refused, rows)]

    def learn(self, took_s: float) -> None:
        took_ms = min(1e3 * took_s, MAX_RAISED * self._expected_ms or math.inf)
        less_ms = self._expected_ms - took_ms
        self._expected_ms -= less_ms * (FORGOTTEN if less_ms > 0 else 1)

    def _judge(self, headers: Mapping[str, Any], now_s: float) -> DeadlineExceeded | None:
        allowed_ms, began_s = self._max_ms, now_s
        for name, value in headers.items():
            is_timeout = HEADERS.get(name.lower())
            if is_timeout is None or not isinstance(value, str):
                continue
            if not is_timeout:
                began_s = min(began_s, read_start(value))
            elif TIMEOUT.fullmatch(value):
                allowed_ms = min(allowed_ms, int(value))
        waited_ms = 1e3 * (now_s - began_s)
        expected_ms = min(self._expected_ms, MAX_EXPECTED * allowed_ms)
        if waited_ms + expected_ms < allowed_ms:
            return None
        return DeadlineExceeded(
            f"the request has {allowed_ms} ms and has waited for {waited_ms:.0f}; batches take"
            f" {self._expected_ms:.0f}"
        )


def read_start(text: str) -> float:
    """Reads the value of a header that says when a request began; infinity if it is malformed."""
    found = START.fullmatch(text)
    if found is None:
        return math.inf
    return float(found[1]) if found[1] else int(found[2]) / 1e3
