"""Pauses between attempts: exponential, capped, with full jitter so that workers spread out."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_S = 0.5
DOUBLINGS = 16


def pause_s(
    failures: int, most_s: float, draw: Callable[[], float] = random.random
) -> float:
    """Seconds to wait after `failures` failures in a row: between half and all of the step."""
    step_s = min(most_s, FIRST_S * 2.0 ** min(failures - 1, DOUBLINGS))
    return step_s * (0.5 + 0.5 * draw())
