"""The costs of requests as a process learns them, and the lane for images that cost far more."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from offpath.handler.contract import Request
from offpath.handler.wire_names import BODY_HEADER

# Share of a batch in the means, and of one that took less time than usual: a slow batch, as the
# first may be, is soon forgotten.
NEW, FORGOTTEN = 1 / 16, 1 / 4
# Least share of a batch's time that reading takes where it closes batches: slow models need large
# ones. EfficientNet-Lite0 and ResNet-50 on a CPU lost 8 and 5 % of their rates.
READ_SHARE = 0.85
# Predicted seconds of waiting from which a process asks whether the client is still there.
LONG_WAIT_S = 0.25
# Clients are impatient when this share of those that left last had waited as long as the one
# before, within this share of the time. Then requests wait for half of that time at most: the
# others would be answered just after their client has left. At the end of a load all leave at once,
# so of those that leave within SAMPLE_S only the first counts. NEW_LEFT is one's share of the mean.
IMPATIENT, NEW_LEFT, ALIKE, SAMPLE_S = 0.7, 1 / 8, 0.15, 0.02
# Share of the clients' patience after which a request is no longer begun.
LATE_AGE = 0.8
# Seconds for which they stay impatient.
REMEMBERED_S = 30.0
# A nice value (man 7 sched): beside a busy thread, one of the lane gets a quarter of a core.
LANE_NICE = 5
# Costly images of one process that may wait or be read.
MAX_COSTLY = 8


class Costs:
    """Learns what requests cost and how long clients wait, and says what waiting requests will.

    Args:
        max_wait_s: no request may wait longer.
        in_flight: batches that are answered at once.
        clock: seconds.
    """

    def __init__(
        self, max_wait_s: float, in_flight: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_wait_s, self._in_flight, self._clock = max_wait_s, in_flight, clock
        self._read_s_per_byte = self._s_per_request = self._read_share = 0.0
        self._alike = self._patience_s = self._left_s = self._impatient_until_s = 0.0

    def learn(self, requests: Sequence[Request], took_s: float, read_s: float) -> None:
        """Learns from a batch, which took `took_s`, of which `read_s` to read it."""
        size = max(1, sum(map(find_size, requests)))
        self._read_s_per_byte = move(self._read_s_per_byte, read_s / size)
        s_per_request = took_s / len(requests) / self._in_flight
        self._s_per_request = move(self._s_per_request, s_per_request, FORGOTTEN)
        self._read_share += NEW * (read_s / took_s - self._read_share)

    def note_left(self, waited_s: float) -> None:
        """Notes that a client left after its request had waited for so long."""
        now_s = self._clock()
        if now_s - self._left_s < SAMPLE_S:
            return
        self._left_s = now_s
        is_alike = abs(waited_s - self._patience_s) < ALIKE * waited_s
        self._alike += NEW_LEFT * (is_alike - self._alike)
        self._patience_s = waited_s
        if self._alike > IMPATIENT:
            self._impatient_until_s = now_s + REMEMBERED_S

    def predict_read_s(self, request: Any) -> float:
        """Predicts the seconds of reading a request, if they decide when its batch is answered."""
        if self._read_share < READ_SHARE or not isinstance(request, Request):  # an item is read
            return 0.0
        return self._read_s_per_byte * find_size(request)

    def predict_wait_s(self, requests: int) -> float:
        """Predicts the seconds until so many requests are answered."""
        return self._s_per_request * requests

    @property
    def has_impatient_clients(self) -> bool:
        return self._clock() < self._impatient_until_s

    @property
    def max_wait_s(self) -> float:
        """The longest wait for which a request is accepted."""
        if self.has_impatient_clients:
            return min(self._max_wait_s, self._patience_s / 2)
        return self._max_wait_s

    @property
    def max_age_s(self) -> float:
        """The longest that a request may have waited when its batch begins."""
        return LATE_AGE * self._patience_s if self.has_impatient_clients else math.inf


def move(mean: float, value: float, down: float = NEW) -> float:
    """Moves a mean up by NEW of the difference to a new value, or down by `down` of it."""
    if not mean:
        return value
    return mean + (NEW if value > mean else down) * (min(value, 2 * mean) - mean)


def find_size(request: Request) -> int:
    """Returns the bytes of a body, which may be in a file of the front door."""
    file = request.headers.get(BODY_HEADER)
    if file and not request.body:
        with contextlib.suppress(OSError):  # the client has left
            return os.stat(file).st_size
    return len(request.body)


def make_lane() -> ThreadPoolExecutor:
    """Makes the lane: one thread of low priority. Decoders release the GIL, so batches go on."""
    return ThreadPoolExecutor(1, "slow-lane", initializer=_lower_priority)


def _lower_priority() -> None:
    with contextlib.suppress(OSError):  # a sandbox may forbid it
        os.nice(LANE_NICE)  # of this thread alone (man 2 nice)
