"""Hypothesis: the same examples each time; with OFFPATH_FUZZ_EXAMPLES so many new ones a test.

OFFPATH_FUZZ_EXAMPLES=20000 scripts/test.sh tests/fuzz/test_texts.py      # six minutes
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("OFFPATH_FUZZ_EXAMPLES", "0"))

settings.register_profile(
    "offpath",
    # A shared machine stalls; what a decoder may take is measured by the tests themselves.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=not EXAMPLES,
    max_examples=EXAMPLES or 150,
    database=None,
)
settings.load_profile("offpath")
