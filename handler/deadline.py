"""Finds requests that cannot be answered in time, so that nobody decodes them.

A request's time begins when its body has arrived, and ends after the milliseconds that a header
leaves, or after the archive's setting. Headers can say that it began earlier. Anybody may have
written them, but they can only make a request older: a time in the future counts as now.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence

from offpath.handler.contract import Request
from offpath.handler.errors import DeadlineExceeded
from offpath.handler.wire_names import ARRIVED_HEADER

# Milliseconds that are left; the second is Envoy's.
TIMEOUTS = ("x-request-timeout-ms", "x-envoy-expected-rq-timeout-ms")
# When the request began, from the front door (nginx.conf) or from other proxies.
STARTS = (ARRIVED_HEADER, "x-request-start")
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
        self._max_ms = max_ms
        self._clock = clock
        self._expected_ms = 0.0

    def refuse_late(self, requests: Sequence[Request]) -> dict[int, DeadlineExceeded]:
        """Returns an error for each request that would be late, by its index."""
        now_s = self._clock()
        judged = ((idx, self._judge(one, now_s)) for idx, one in enumerate(requests))
        return {idx: error for idx, error in judged if error is not None}

    def learn(self, took_s: float) -> None:
        took_ms = min(1e3 * took_s, MAX_RAISED * self._expected_ms or math.inf)
        less_ms = self._expected_ms - took_ms
        self._expected_ms -= less_ms * (FORGOTTEN if less_ms > 0 else 1)

    def _judge(self, request: Request, now_s: float) -> DeadlineExceeded | None:
        headers = request.headers
        allowed_ms = read_allowed_ms(headers, self._max_ms)
        began_s = min([now_s, *(read_start(headers[name]) for name in STARTS if name in headers)])
        if request.arrived_s:
            began_s = min(began_s, now_s - (time.monotonic() - request.arrived_s))
        waited_ms = 1e3 * (now_s - began_s)
        expected_ms = min(self._expected_ms, MAX_EXPECTED * allowed_ms)
        if waited_ms + expected_ms < allowed_ms:
            return None
        return DeadlineExceeded(
            f"the request has {allowed_ms} ms and has waited for {waited_ms:.0f}; batches take"
            f" {self._expected_ms:.0f}"
        )


def read_allowed_ms(headers: Mapping[str, str], max_ms: int) -> float:
    """Returns the milliseconds that a request has: its headers', but at most `max_ms` (0: any)."""
    given = [headers[name] for name in TIMEOUTS if name in headers]
    return min([max_ms or math.inf, *(int(one) for one in given if TIMEOUT.fullmatch(one))])


def read_start(text: str) -> float:
    """Reads the value of a header that says when a request began; infinity if it is malformed."""
    found = START.fullmatch(text)
    if found is None:
        return math.inf
    return float(found[1]) if found[1] else int(found[2]) / 1e3
