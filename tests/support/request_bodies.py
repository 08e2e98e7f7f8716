"""Gives schemathesis real and broken images for the media types that hold one.

It loads this module by name (tests/serving/front/test_openapi.py).
"""

from __future__ import annotations

import schemathesis
from hypothesis import strategies as st

from tests.support.images import accepted, rejected

MAX_BYTES = 1_000_000
MEDIA_TYPES = ("application/octet-stream", "application/x-npy", "image/*")

good = list(accepted().values())
bad = [body for body, *_ in rejected().values() if len(body) < MAX_BYTES]
bodies = st.sampled_from([*good, *bad]) | st.binary(max_size=2000)
for name in MEDIA_TYPES:
    schemathesis.openapi.media_type(name, bodies)
