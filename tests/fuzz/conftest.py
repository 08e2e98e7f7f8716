"""Hypothesis with the same examples each time, or OFFPATH_FUZZ_EXAMPLES new examples per test.

OFFPATH_FUZZ_EXAMPLES=20000 scripts/test.sh tests/fuzz/test_texts.py      # six minutes
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("OFFPATH_FUZZ_EXAMPLES", "0"))

settings.register_profile(
    "offpath",
    # No deadline, because a shared machine stalls; the tests measure the decoders themselves.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=not EXAMPLES,
    max_examples=EXAMPLES or 100,
    database=None,
)
settings.load_profile("offpath")
